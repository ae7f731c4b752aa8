"""Places in the shared history that are the same at every broker."""
