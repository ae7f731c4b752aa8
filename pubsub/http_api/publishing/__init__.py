"""Messages that a request publishes."""
