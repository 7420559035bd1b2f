"""Benchmarks: every number that is claimed, measured against the named rival in one run.

Each module is a command (``python -m benchmarks.noop``) that prints a table and stores it with the
command, the date and the machine below ``results/``. Absolute values belong to that machine; the
ratios are what counts. Rivals are installed on demand into a virtual environment of their own.
"""
