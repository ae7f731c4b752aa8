"""The history: one log of messages behind the interface ``IStore``."""
