"""The Python client, which imports nothing of the server."""
