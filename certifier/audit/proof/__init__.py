"""Proof: the chain of each history, and the digests that members exchanged."""
