"""This machine: its ports, its disk's sync, its child processes, its event loop, its log lines."""
