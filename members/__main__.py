"""`python -m members` is the command `groupcert`."""

from members.cli import main

main()
