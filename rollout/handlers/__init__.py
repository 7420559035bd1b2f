"""Handlers of rollouts: what an agent does in each stage (`base`), and the registry that finds them by name (`registry`).

A package adds handlers through the entry-point group ``tangram.rollouts``.
"""
