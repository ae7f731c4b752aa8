"""A record of the log and its columns, and the runs of messages that are made of them."""
