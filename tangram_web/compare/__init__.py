"""Comparisons of two sets of actions, measured or simulated, with the interval of each difference."""
