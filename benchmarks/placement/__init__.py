"""Benchmarks of placement: what its algorithms take and how good they are, beside the paper's as printed.

A section is a module with `add_options` and `measure`; `__main__` lists them. Each stores its part of ``results/placement.json``.
"""
