"""The metadata of a log in SQLite: tables, and the rows of a damaged file."""
