"""The segments of a log in order, and the offsets that cannot be read."""
