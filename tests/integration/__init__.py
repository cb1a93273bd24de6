"""Real log server, real member processes, real clients; what is promised outside holds."""
