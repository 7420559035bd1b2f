"""CPU cores of a node: their ledger, their probe, and drivers that run commands."""
