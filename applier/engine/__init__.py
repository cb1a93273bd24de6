"""The applier's threads around a scheme: they start jobs, commit groups and wait."""
