"""Recorded trajectories: reading, resampling and generating them. Imports nothing else of the client."""
