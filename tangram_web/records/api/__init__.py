"""REST resources of the history."""
