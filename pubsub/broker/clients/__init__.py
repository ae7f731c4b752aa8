"""The clients of a broker: connections, handshakes, sessions, peers."""
