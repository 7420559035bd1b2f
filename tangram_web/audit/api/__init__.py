"""REST resources of the audit."""
