"""The checker: what clients were told, against what the group's log says by a model of its own."""
