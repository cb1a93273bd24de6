"""What a gRPC call passes before its service: who calls, how many at a time, how many bytes."""
