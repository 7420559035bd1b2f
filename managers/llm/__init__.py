"""Seats of language models: which backend a lease of ``llm:POOL`` gets."""
