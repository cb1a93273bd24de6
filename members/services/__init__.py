"""The gRPC services of a member: a request checked, handed on, answered."""
