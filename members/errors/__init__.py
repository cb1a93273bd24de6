"""What a member refuses and what a client is told, by who must act."""
