"""How tests start Java: what it would compile for long runs costs more than they take."""

FAST_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseParallelGC"
COLUMN_BYTES_MAX = 32 << 20
COLUMN_LIMIT = f"-Darrow.vector.max_allocation_bytes={COLUMN_BYTES_MAX}"
"""A column of a batch ends an audit at 2 GB: here at less, so that a test need not have as much."""
