"""What was decided, as Parquet files that appear whole or not at all."""
