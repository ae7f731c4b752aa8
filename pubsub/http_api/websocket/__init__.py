"""WebSockets and their subprotocol."""
