"""What runs within programs of others is imported there alone."""

collect_ignore = ["inside"]
