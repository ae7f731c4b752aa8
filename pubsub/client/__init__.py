"""The command ``pubsub`` and a client of the HTTP API."""
