"""Parallelism by context length: profiles as measured here and as modelled, and what a selector makes of them (EARL, Figures 1 and 3)."""
