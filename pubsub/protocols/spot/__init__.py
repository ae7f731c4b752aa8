"""spot: topics over the ZeroMQ Message Transport Protocol, and brokers that share them."""
