"""Rivals from their documented behaviour, not from ours: assumptions stand on top of each file."""
