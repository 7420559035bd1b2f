"""Workloads: the programs of trainers, one file each. Every parameter names its source."""
