"""Metric families of problems (`tangram_web.problems`): bounded by their kinds, without a subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from tangram_web.problems.kinds import KINDS


def families_of_problems(raised: Iterable[tuple[str, str, int]]) -> Iterator[Metric]:
    """Yield the problems that are raised, as kind, severity and actions; kinds without one count 0."""
    counts: Counter[tuple[str, str]] = Counter()
    actions: Counter[str] = Counter()
    for kind in KINDS:
        counts[kind.key, kind.severity.value] = actions[kind.key] = 0
    for key, severity, affected in raised:
        counts[key, severity] += 1
        actions[key] += affected
    family = GaugeMetricFamily(
        "tangram_problem",
        "Problems that are raised, acknowledged ones included.",
        labels=["kind", "severity"],
    )
    for labels, count in counts.items():
        family.add_metric(labels, count)
    yield family
    held_up = GaugeMetricFamily(
        "tangram_problem_actions",
        "Actions that problems hold up, or that fail by them.",
        labels=["kind"],
    )
    for key, count in actions.items():
        held_up.add_metric((key,), count)
    yield held_up
