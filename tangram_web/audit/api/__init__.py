"""REST resources of the configuration."""
