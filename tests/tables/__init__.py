"""Tables of the pipeline on a disk, without Spark: Delta, Parquet files and Iceberg."""
