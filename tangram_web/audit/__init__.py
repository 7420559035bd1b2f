"""Who did what, when, and what it was before."""
