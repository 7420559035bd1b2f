"""Pages of rollouts: the list by stage, one rollout, groups of samples, and backends of language models."""
