"""The files of the log: a directory of segments, their heads, records and indexes."""
