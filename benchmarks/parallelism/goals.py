"""Goals of the parts of `benchmarks.parallelism`: what is found in, what is missed out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Of the selector's seconds over the oracle's, and of a real run over the best fixed degree, where the interval decides.
OVER_ORACLE: Final = 1.05
OVER_FIXED: Final = 1.0
#: Changes of the degree in 1,000 steps about one context that are no flapping: there and back once.
MOST_SWITCHES: Final = 2


def missed(part: str, found: Mapping[str, Any]) -> list[str]:
    """Return the goals of a part that its figures miss."""
    checks = {"replay": _replay, "real": _real, "modelled": _modelled, "noise": _noise}
    return [f"{part}: {each}" for each in checks[part](found)] if part in checks else []


def _replay(found: Mapping[str, Any]) -> list[str]:
    return [problem for runs in _by_responses(found) for problem in _beside_oracle(runs)]


def _modelled(found: Mapping[str, Any]) -> list[str]:
    problems = _replay(found)
    for runs in _by_responses(found):
        chosen = runs["selector"]["seconds"]
        problems += [
            f"{runs['responses']} responses: {name} takes {run['seconds']} s, the selector {chosen} s"
            for name, run in runs.items()
            if name.startswith("tp") and run["lacked_memory_at_step"] is None and run["seconds"] <= chosen
        ]  # fmt: skip
    return problems


def _by_responses(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [runs for name, runs in found.items() if name.isdecimal()]


def _beside_oracle(runs: Mapping[str, Any]) -> list[str]:
    selector = runs["selector"]
    if (step := selector["lacked_memory_at_step"]) is not None:
        return [f"{runs['responses']} responses: the selector lacks memory at step {step}"]
    over = selector["over_oracle"]
    return [f"{runs['responses']} responses: {over} × the oracle, goal {OVER_ORACLE}"] if over > OVER_ORACLE else []  # fmt: skip


def _real(found: Mapping[str, Any]) -> list[str]:
    problems = []
    if found["selector_lacked_memory"]:
        problems.append(f"{found['selector_lacked_memory']} runs of the selector lack memory")
    if found["best_fixed"] is not None and found["interval"][0] > OVER_FIXED:
        problems.append(f"{found['interval']} × {found['best_fixed']}, goal {OVER_FIXED}")
    return problems


def _noise(found: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}: {each['most_switches']} switches in 1,000 steps"
        for name, each in found.items()
        if isinstance(each, Mapping) and each["most_switches"] > MOST_SWITCHES
    ]
