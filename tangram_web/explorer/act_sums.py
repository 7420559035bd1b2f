"""Completion times of a query from rollups: all of its actions, where its rows would be a sample.

Rules
1. Rollups are of all projects together or of one project, by the second of completion. So they answer
   for ``since``, ``until``, ``project:`` with whole names and ``state:finished``; any other filter reads rows.
2. A completion less its duration is a submission. Durations are known to the bin (8.5 %) and completions
   to the length of a rollup, over which its actions are distributed evenly.
3. Rollups that do not cover the range, because Redis was emptied or the journal was not folded for a
   while, are not used. The newest seconds, which are not stored yet, are of the rows that were read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import numpy as np
import redis

from tangram_web.explorer.conditions import RowPart, rows_of
from tangram_web.explorer.fields import ACTIONS
from tangram_web.explorer.heatmap import ActSums, Numbers
from tangram_web.explorer.impossible import instant
from tangram_web.explorer.language import FilterTerm, Query
from tangram_web.explorer.values import Sign
from tangram_web.lib import bus
from tangram_web.live.access import Sight
from tangram_web.live.rollups.histogram import BINS, PHASES, seconds_of
from tangram_web.live.rollups.projects import MAX_PROJECTS, PROJECT_SIZES
from tangram_web.live.rollups.query import read_range
from tangram_web.live.rollups.rollup import SIZES, Rollup
from tangram_web.live.rollups.store import RollupStore

#: Seconds at the end of a range that may not be stored yet.
UNSTORED_SECONDS: Final = 45.0
#: Share of a range that no rollup needs to cover.
_MISSING: Final = 0.01
#: Position of the first bin of the completion time in a rollup.
_ACT: Final = PHASES.index("act") * BINS
_BIN_SECONDS: Final = np.array([seconds_of(index) for index in range(BINS)])


def act_sums(
    query: Query, sight: Sight, latest: Iterable[tuple[float, float]], now: float
) -> ActSums | None:
    """Return the completion times of a query from rollups; None where they cannot answer for it.

    ``latest``: submission and completion time of the latest actions that it finds.
    """
    projects = _projects(query, sight)
    if projects is None:
        return None
    found = rows_of(ACTIONS, RowPart.ENDED, query, sight, now).order_by("pk")
    oldest = found.values_list("submitted_at", flat=True).first()
    if oldest is None:
        return None
    begins = max([oldest.timestamp(), *(instant(v.values[0], now) for v in query.of("since"))])
    ends = min([now, *(instant(term.values[0], now) for term in query.of("until"))])
    try:
        read = [_read(project, begins, now) for project in projects]
    except redis.RedisError:
        return None
    covering = [each for each in read if each is not None]
    if len(covering) < len(projects) or ends <= begins:
        return None
    parts = [_numbers(rollups) for _, rollups in covering]
    stored = min(rollups[-1].at + rollups[-1].seconds for _, rollups in covering)
    parts.append(_unstored(latest, stored))
    since, until, seconds, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
    size = max(size for size, _ in covering)
    return ActSums(begins, ends, size, since, until, seconds, counts)


def _projects(query: Query, sight: Sight) -> list[str] | None:
    """Return the projects whose rollups answer a query, empty text: all together; None: none do."""
    chosen: set[str] | None = None if sight.projects is None else set(sight.projects)
    for term in query.terms:
        if term.negated or not _is_summed(term):
            return None
        if term.field.name == "project":
            names = {value.text for value in term.values}
            chosen = names if chosen is None else chosen & names
    if chosen is None:
        return [""]
    return sorted(chosen) if 0 < len(chosen) <= MAX_PROJECTS else None


def _is_summed(term: FilterTerm) -> bool:
    match term.field.name:
        case "since" | "until":
            return True
        case "project":
            return all(value.sign is Sign.IS for value in term.values)
        case "state":
            return any(value.text == "finished" for value in term.values)
    return False


def _read(project: str, begins: float, now: float) -> tuple[int, list[Rollup]] | None:
    """Return the rollups of what ended since ``begins``; None where they do not cover it."""
    store = RollupStore(bus.impatient_client(), bus.keys())
    read = partial(store.read, project=project)
    size, rollups = read_range(read, begins, now, now, PROJECT_SIZES if project else SIZES)
    if not rollups:
        return None
    covered = sum(one.seconds for one in rollups) - max(0.0, begins - rollups[0].at)
    missing = now - begins - covered
    allowed = UNSTORED_SECONDS + _MISSING * (now - begins)
    return (size, rollups) if missing <= allowed else None


def _numbers(rollups: list[Rollup]) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    bins = [np.frombuffer(one.bins, "<u2").astype(np.int64) for one in rollups]
    lengths = [len(each) for each in bins]
    at = np.repeat([float(one.at) for one in rollups], lengths)
    width = np.repeat([float(max(1, one.seconds)) for one in rollups], lengths)
    counts = np.concatenate([np.frombuffer(one.counts, "<u4") for one in rollups]).astype(float)
    flat = np.concatenate(bins)
    act = flat >= _ACT
    seconds = _BIN_SECONDS[flat[act] - _ACT]
    since = at[act] - seconds
    return since, since + width[act], seconds, counts[act]


def _unstored(
    latest: Iterable[tuple[float, float]], stored: float
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return the actions that ended after the newest rollup, one by one."""
    rows = [(at, seconds) for at, seconds in latest if at + seconds >= stored]
    at, seconds = np.array(rows, float).reshape(len(rows), 2).T
    return at, at, seconds, np.ones(len(rows))
