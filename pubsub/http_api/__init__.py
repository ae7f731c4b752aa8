"""The HTTP API: publishing, following, WebSockets, the history, positions, writing exactly once."""
