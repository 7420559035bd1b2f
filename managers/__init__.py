"""Managers: each owns one kind of resource, as a pure ledger and a driver that does the work.

A ledger imports `domain`, numpy and the standard library; a driver may wait, spawn and read the
disk. One manager never imports another; `managers.registry` alone knows them all (docs/managers.md).
"""
