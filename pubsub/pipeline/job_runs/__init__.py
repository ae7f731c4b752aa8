"""A job from its start to its end: Java, its query, progress, errors."""
