"""The jobs: each a module with a function on DataFrames and ``run``, and a program by itself."""
