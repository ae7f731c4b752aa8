"""The tables that jobs write: partitioned Parquet files, and the commits that make them a table.

``files`` writes the files and needs only pyarrow, so that workers import little. ``delta`` and
``parquet`` commit the files. ``spark`` connects both to DataFrames.
"""
