"""One order of messages for the whole group: the port, with NATS JetStream or etcd behind it."""
