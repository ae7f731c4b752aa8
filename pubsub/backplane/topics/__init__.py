"""Topics, queue keys and exclusive owners, the same at every broker."""
