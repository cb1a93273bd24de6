"""Programs of others at a server of a group: what passes, what is refused, what fails."""
