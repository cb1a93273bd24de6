"""This machine: its ports, its disk's sync, processes, SQL servers, event loop and log lines."""
