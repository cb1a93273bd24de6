"""The console: a live page about a member's group, metrics and probes, over HTTP."""
