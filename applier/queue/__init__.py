"""The relay queue, stored before anything else, and the values it passes to workers and targets."""
