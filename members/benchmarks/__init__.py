"""How fast it is, one table each."""
