"""Limits of what one project may have waiting, and how fast it may submit.

They protect the other projects: memory of the loop, of Redis and of every reader of the journal grows
with the actions that wait. A submission beyond a limit is refused with 429 and may be repeated.

The installation has limits that hold for every project; the configuration of a project may replace some.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from domain.action import Action

#: A batch counts as a whole, so the largest one must fit into a burst.
LEAST_BURST_ACTIONS: Final = 1000

#: What a queued action takes besides its texts.
_BASE_BYTES = 1024


class ProjectLimits(msgspec.Struct, frozen=True):
    """Limits of each project."""

    #: Actions that wait for a grant.
    queued_actions: int = 200_000
    #: Their commands, inputs and metadata together.
    queued_bytes: int = 512 * 1024 * 1024
    #: Actions a second, over any time longer than that of the burst.
    submissions_per_second: float = 5000.0
    #: Actions that may be submitted at once after a pause.
    burst_actions: int = 200_000
    #: Actions that the scheduler has not read yet; they delay no other project (`SUBMIT`).
    arriving_actions: int = 200_000


class ProjectBounds(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of one project that replace those of the installation; None keeps the installation's."""

    queued_actions: Annotated[int, Meta(ge=1, le=10**8)] | None = None
    queued_bytes: Annotated[int, Meta(ge=1, le=2**40)] | None = None
    submissions_per_second: Annotated[float, Meta(ge=0.001, le=1e6)] | None = None
    burst_actions: Annotated[int, Meta(ge=LEAST_BURST_ACTIONS, le=10**8)] | None = None

    def over(self, limits: ProjectLimits) -> ProjectLimits:
        """Return the limits of the project, where the installation has ``limits``."""
        own = {name: getattr(self, name) for name in self.__struct_fields__}
        return msgspec.structs.replace(
            limits, **{name: value for name, value in own.items() if value is not None}
        )


class Load(NamedTuple):
    """What a submission adds to the queue of its project."""

    project: str
    actions: int
    bytes: int


def queued_bytes(action: Action) -> int:
    """Return what ``action`` takes while it waits, in about. The same in every process."""
    size = _BASE_BYTES
    if (work := action.exec) is not None:
        size += sum(map(len, work.command)) + len(work.stdin or "")
        if work.env:
            size += sum(len(name) + len(value) for name, value in work.env.items())
    if (call := action.call) is not None:
        size += len(call.body) + len(call.path)
    if action.metadata:
        size += len(msgspec.json.encode(action.metadata))
    return size


def loads_of(actions: list[Action]) -> list[Load]:
    """Return the load of a submission, one for each project."""
    if len(actions) == 1:
        return [Load(actions[0].project, 1, queued_bytes(actions[0]))]
    sums: dict[str, tuple[int, int]] = {}
    for action in actions:
        count, size = sums.get(action.project, (0, 0))
        sums[action.project] = count + 1, size + queued_bytes(action)
    return [Load(project, *sums[project]) for project in sums]
