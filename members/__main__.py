"""`python -m groupcert.members` is the command `groupcert`."""

from groupcert.members.commands.cli import main

main()
