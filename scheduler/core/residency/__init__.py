"""Residency: what stays on units between actions, and how that changes grants (`policy`)."""
