"""Fleets in virtual time: the production `LlmFleet` and its policies, with modelled engines, predictors and tools around them."""
