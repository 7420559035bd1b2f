"""Simulations that people ask for at a page: kept, shown while they run, compared."""
