"""Vocabulary of all packages; imports none of them.

One word, one thing (docs/glossary.md). Structs here are values: they cross process boundaries as
msgpack and the HTTP edge as JSON, so a new field gets a default, and the name of a removed field
stays reserved. No I/O, no clock, no randomness that is not a parameter.
"""
