"""The edge of a group: everything that touches the network, the clock and processes."""
