"""The explorer: one list of actions, trajectories, tasks and rollouts, filtered by a small language."""
