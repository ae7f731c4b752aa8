"""From the read of a publisher to a batch: checks, rates, backpressure, gathering."""
