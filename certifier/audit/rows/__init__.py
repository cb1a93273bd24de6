"""The rows of certification logs in Spark, and the state before each row."""
