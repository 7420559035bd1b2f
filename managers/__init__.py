"""Managers: each owns one kind of resource, as a pure ledger and a driver that does the work.

A ledger imports `domain`, numpy and the standard library; a driver may wait, spawn and read the
disk. Managers share `managers.common` and never import each other; `managers.registry` lists them
(docs/managers.md).
"""
