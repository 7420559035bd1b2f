"""Fleets for tests: declared times, and a policy that decides as a test says."""

from __future__ import annotations

from placement.facts import ArrangedGroup, BatchArrangement, Move, Prediction, WorkerFacts
from placement.fleet import LlmFleet
from placement.policies.plain import PlainPolicy


class DeclaredTimes:
    """10 ms per token at batch 1 and 1 ms more for each further sequence; prefill 1,000 and transfers 10,000 tokens a second."""

    def __init__(self, transfers=10_000.0, kv_tokens=1e9):
        self._transfers, self._kv_tokens = transfers, kv_tokens

    def token_seconds(self, degree, batch, context_tokens):
        return (0.01 + 0.001 * (batch - 1)) / degree**0.5

    def prefill_seconds(self, degree, tokens):
        return tokens / (1000.0 * degree)

    def transfer_seconds(self, tokens):
        return tokens / self._transfers if self._transfers else float("inf")

    def kv_tokens(self, degree):
        return self._kv_tokens * degree


class ScriptedPolicy(PlainPolicy):
    """Round robin and caches, with arrangements and moves that a test dictates."""

    arranges = True

    def __init__(self, arranged=None, targets=None):
        super().__init__("rr", "cache")
        #: Key → worker, of arrangements and of moves.
        self.arranged = arranged or {}
        self.targets = targets or {}
        self.batches = []

    def arrange(self, batch, workers, fleet):
        self.batches.append([each.key for each in batch])
        found = {each.key: self.arranged[each.key] for each in batch if each.key in self.arranged}
        numbers = sorted(set(found.values()))
        sizes = {number: list(found.values()).count(number) for number in numbers}
        groups = tuple(ArrangedGroup(number, sizes[number], 1.0, 1.0) for number in numbers)
        return BatchArrangement(found, groups) if found else None

    def move(self, trajectory, fleet):
        target = self.targets.get(trajectory.key)
        if target is None or trajectory.worker is None or target == trajectory.worker:
            return None
        tokens = trajectory.context_tokens
        return Move(trajectory.key, trajectory.worker, target, tokens, 1.0, trajectory.total_tokens)


def workers(*slots, **changes):
    """Return workers 1, 2, … with so many slots; ``changes`` are of all."""
    return [WorkerFacts(number, count, **changes) for number, count in enumerate(slots, 1)]


def a_fleet(*slots, policy=None, times=None, **options):
    """Return a fleet with workers 1, 2, …"""
    return LlmFleet(
        policy or PlainPolicy("rr", "cache"),
        times or DeclaredTimes(),
        workers(*(slots or (4, 4))),
        **options,
    )


def step(fleet, key, at, *, seconds=1.0, prompt=100, sampled=50, **fields):
    """Run one generation of a trajectory from ``at``; return its route."""
    route = fleet.request(key, at, prompt_tokens=prompt, **fields)
    fleet.begin(key, at)
    fleet.end(key, at + seconds, prompt, sampled)
    return route


def tokens(count, tools=0.0):
    """Return a prediction of so many tokens."""
    return Prediction(float(count), tools, source="test")
