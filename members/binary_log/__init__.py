"""What a member committed, in order, for its replicas."""
