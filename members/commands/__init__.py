"""The verbs of the command `groupcert`."""
