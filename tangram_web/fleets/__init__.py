"""Pages of fleets: workers with their loads, lengths of trajectories, moves of caches, and why a trajectory is on its worker."""
