"""Batches: which rows of finished rollouts each rank of a trainer owns, and the doors of rollout workers that serve them."""
