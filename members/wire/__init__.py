"""Plain values to messages and back, and the channels that carry them."""
