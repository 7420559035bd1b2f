"""Template tags of the pages of rollouts."""
