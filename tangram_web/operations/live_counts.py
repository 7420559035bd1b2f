"""Counts of live actions and open trajectories that a verb would affect.

Actions of a pool are counted by the scheduler, as on every page: a row names the pool of its request
alone, and most requests leave it to their task, their trajectory or their project. Every other
selection is counted by rows. Both have the same three states, waiting, granted and running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from django.db.models import Count

from domain.action import ActionState
from tangram_web.dashboard.scheduler_selectors import asked
from tangram_web.lib import scheduler_client
from tangram_web.operations.verb import Effect
from tangram_web.records.models import ActionRecord, TrajectoryRecord

#: Most rows that are read one by one, where no column can be filtered.
MOST_LOOKED_AT: Final = 20_000


#: State → its word in the effect of a verb.
_WORDS: Final = {
    ActionState.QUEUED: "waiting",
    ActionState.GRANTED: "granted",
    ActionState.RUNNING: "running",
}


def by_pool(status: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return the number of actions of each pool by state, of a status of the scheduler."""
    return {
        name: {word: counts.get(state.value, 0) for state, word in _WORDS.items()}
        for name, counts in status.get("pools", {}).items()
    }


def effect_on_pool(name: str, says: str) -> Effect:
    """Return the effect of a verb on all actions of a pool; without counts when they are unknown."""
    status, problem = asked(scheduler_client.status)
    if status is None:
        return Effect({}, says, f"the affected actions cannot be counted now: {problem}")
    return Effect(by_pool(status).get(name, dict.fromkeys(_WORDS.values(), 0)), says)


def only(state: str) -> dict[str, int]:
    """Return the counts of one action in ``state``."""
    return {word: int(state == of) for of, word in _WORDS.items()}


def live(**which: Any) -> dict[str, int]:
    """Return the number of actions that ``which`` selects, by state."""
    rows = ActionRecord.objects.filter(finished_seq=None, **which)
    states = dict(rows.values_list("state").annotate(Count("id")).order_by())
    return {word: states.get(state.value, 0) for state, word in _WORDS.items()}


def live_that(needs: Callable[[ActionRecord], bool]) -> dict[str, int]:
    """Return the number of actions for which ``needs`` is true, by state."""
    found = dict.fromkeys(_WORDS.values(), 0)
    for row in live_rows():
        if needs(row):
            found[_WORDS[ActionState(row.state)]] += 1
    return found


def started(counts: Mapping[str, int]) -> int:
    """Return how many of the counted actions are with a node: granted or running."""
    return counts["granted"] + counts["running"]


def live_rows() -> Iterable[ActionRecord]:
    """Return the latest actions that have not finished, with their costs and specs."""
    rows = ActionRecord.objects.filter(finished_seq=None).order_by("-id")
    return rows.only("id", "state", "project", "pool", "cost", "spec", "kind")[:MOST_LOOKED_AT]


def open_trajectories(**which: Any) -> int:
    """Return the number of open trajectories that ``which`` selects."""
    return TrajectoryRecord.objects.filter(state="open", **which).count()


def calls(row: ActionRecord, target: str) -> bool:
    """Say whether ``row`` is a call to ``target``."""
    return bool(row.spec) and (row.spec.get("call") or {}).get("target") == target
