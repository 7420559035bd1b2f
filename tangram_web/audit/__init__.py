"""The audit: an append-only log of verbs with actor, target and values."""
