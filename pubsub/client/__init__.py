"""For those who use a broker: the command ``pubsub``."""
