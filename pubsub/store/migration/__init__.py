"""Migration of a history of version 0.1, a file of SQLite."""
