"""Backends of language models: their dialects, health, and sampling that survives them."""
