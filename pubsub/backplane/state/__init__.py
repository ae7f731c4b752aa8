"""The state that brokers agree upon: its interface, its values, and requests through it."""
