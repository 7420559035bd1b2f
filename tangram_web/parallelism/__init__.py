"""Pages of selectors of parallelism."""
