"""HTTP connections as clients of the broker."""
