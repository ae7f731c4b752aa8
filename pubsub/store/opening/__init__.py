"""Opening a log: its end, segments that were not completed, and its epoch."""
