"""The endpoints of the state of the broker: status, topics, sessions, draining."""
