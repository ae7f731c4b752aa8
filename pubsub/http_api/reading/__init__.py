"""Messages that a request reads: a range of the history, or a response without an end."""
