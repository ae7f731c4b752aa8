"""The request headers that belong to a message that is published."""

SENDER_HEADER = "pubsub-sender"
HEADER_PREFIX = "pubsub-header-"
"""The prefix of the request headers that become headers of the message."""
