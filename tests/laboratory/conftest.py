"""What makes a process wrong is for processes that a test starts, not for its own."""

collect_ignore = ["mutant"]
"""Python has loaded another module called `sitecustomize`, where there is one."""
