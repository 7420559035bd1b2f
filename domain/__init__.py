"""The vocabulary that every other package imports, and that imports nothing of ours.

One word, one thing (docs/glossary.md). Structs here are values: they cross process borders as
msgpack and the HTTP edge as JSON, so a field that is added gets a default, and a field that is
removed stays reserved. No I/O, no clock, no randomness that was not passed in.
"""
