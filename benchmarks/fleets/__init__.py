"""Fleets of language-model workers in virtual time: rivals, ablations, and the figures of Heddle."""
