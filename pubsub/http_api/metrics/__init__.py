"""The figures of the broker for Prometheus."""
