"""What a member decides: pure state machines, messages in and effects out."""
