"""Sharing: how much of a pool's resources each project may use."""
