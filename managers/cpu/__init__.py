"""CPU cores of a node: their ledger, what a node has of them, and drivers that run commands."""
