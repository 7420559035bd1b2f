"""Filters of our templates."""
