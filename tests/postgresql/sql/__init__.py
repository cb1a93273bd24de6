"""SQL that nobody here would write: drawn schemas and sessions at three servers of a group."""
