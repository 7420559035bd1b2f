"""Verbs at pages: previewed, confirmed, told in the audit, and undone where that can be."""
