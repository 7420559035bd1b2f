"""Tokens of rollouts: tokenizers, chat templates, token-in token-out, segments, their packed form. Pure: no I/O but reading a folder."""
