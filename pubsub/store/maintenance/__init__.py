"""The commands for a log: check, repair, backup, dump."""
