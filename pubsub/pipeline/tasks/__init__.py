"""The tasks that a batch is divided into, and the messages they read in the workers."""
