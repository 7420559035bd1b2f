"""Helpers of the web side that own no rows."""
