"""Benchmarks of rollouts: a whole Tangram with real environments, scripted language models with declared token times, and a rival.

`plans` says what a rollout does, `agents` is the handler that does it, `language_models` answers it, `trainer` collects
informative prompts as DAPO does. The sections are `table3`, `scale`, `cancels`, `noop` and `many`.
"""
