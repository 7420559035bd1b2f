"""Reward of a completed action, read from its result.

Pure. Only a completed action has one: an infrastructure failure, a time-out or a cancel never
carries a reward (I2). What cannot be read with certainty is no reward, rather than a wrong one.
"""

from __future__ import annotations

import json
import math

from domain.action import Outcome, RewardRule
from domain.ports import ExecResult, RunReport
from managers.common.json_paths import part_of


def reward_of(rule: RewardRule | None, report: RunReport) -> float | None:
    """Return the reward that ``rule`` reads from ``report``; None when there is none."""
    result, answer = report.result, report.answer
    if rule is None or report.outcome is not Outcome.COMPLETED:
        return None
    if answer is not None:
        read = rule.source == "json" and 200 <= answer.status < 300 and not answer.truncated
        return _number(rule.path, answer.body) if read else None
    if result is None:
        return None
    if rule.source == "exit_code":
        return None if result.exit_code is None else float(result.exit_code == 0)
    if rule.source == "json":
        return _json_reward(rule.path, result)
    return None


def _json_reward(path: str | None, result: ExecResult) -> float | None:
    # The beginning of the output is what is kept, so the line that looks last may not be.
    lines = [] if result.truncated else result.stdout.split("\n")
    last = next((line for line in reversed(lines) if line.strip()), None)
    return None if last is None else _number(path, last)


def _number(path: str | None, text: str) -> float | None:
    """Return the finite number at ``path`` of a JSON text; None when there is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    value = part_of(value, path or "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
