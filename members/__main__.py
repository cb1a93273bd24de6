"""`python -m groupcert.members` is the command `groupcert`."""

from .commands.cli import main

main()
