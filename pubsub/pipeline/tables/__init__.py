"""Tables that jobs write: Parquet files in partitions, and what makes them one table.

``parts`` writes the files and needs pyarrow alone, so that it is cheap in a worker. ``delta`` and
``parquet`` commit them. ``spark`` ties both to DataFrames.
"""
