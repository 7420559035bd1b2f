"""Simulations requested on a page: stored, run by a job, and compared."""
