"""One order of messages for the whole group: the port, and NATS JetStream behind it."""
