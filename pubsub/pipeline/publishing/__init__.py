"""From the rows of a task to messages at a broker."""
