"""Usage of shared resources by project. Computed on request, never stored."""

from __future__ import annotations

from collections import Counter

from domain.advice import ShareUsage
from domain.resources import units
from scheduler.core.sharing.cohorts import CohortKey
from scheduler.core.sharing.shares import ShareBook, takes_of_share
from scheduler.core.state.model import State


def share_usage(state: State) -> list[ShareUsage]:
    """Return the usage of every project that has, uses or waits for a share, by name."""
    book = ShareBook(state)
    return [
        _view(state, book, key, project, waiting[project])
        for key, cohort in sorted(state.sharing.cohorts.items(), key=lambda item: item[0])
        for waiting in [_waiting(state, key)]
        for project in sorted({*cohort.shares, *cohort.used, *waiting})
    ]


def _waiting(state: State, key: CohortKey) -> Counter[str]:
    """Count the queued actions that need the shared resource ``key``, by project."""
    waiting: Counter[str] = Counter()
    for queue_key, queue in state.queues.active.items():
        project = queue_key.needs.project
        if project and queue.size and takes_of_share(state, queue_key, key):
            waiting[project] += queue.size
    return waiting


def _view(state: State, book: ShareBook, key: CohortKey, project: str, waiting: int) -> ShareUsage:
    cohort = state.sharing.cohorts[key]
    share, used = cohort.share_of(project), cohort.used.get(project, 0)
    return ShareUsage(
        pool=key.pool or None,
        resource=key.name,
        project=project,
        nominal=units(share.nominal),
        borrow=None if share.borrow is None else units(share.borrow),
        lend=None if share.lend is None else units(share.lend),
        used=units(used),
        borrowed=units(max(0, used - share.nominal)),
        left=units(book.left(key, project)),
        waiting=waiting,
    )
