"""Rollouts as a service: stages, workers, handlers, tokens, language-model backends (ProRL Agent).

Layers inside, top to bottom: ``worker`` > ``handlers`` > ``agent`` > ``llm`` > ``tokens`` > ``core`` > ``ports``. ``core``,
``tokens`` and the choices in ``llm`` are pure: time and randomness are arguments. The runtime implements ``ports``.
"""
