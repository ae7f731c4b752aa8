"""The jobs. Each module has functions on DataFrames, ``run``, and can run as a program."""
