"""How tests start Java: what it would compile for long runs costs more than they take."""

FAST_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseParallelGC"
