"""The command lines of the jobs. Needs no Spark."""
