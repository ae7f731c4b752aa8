"""The positions of queries, their form in a checkpoint, and their lag."""
