"""The readers of batch and streaming queries, which Spark calls in the driver."""
