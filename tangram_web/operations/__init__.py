"""Verbs on pages: previewed, confirmed, written to the audit, and undone where possible."""
