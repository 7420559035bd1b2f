"""The last minutes of single projects, so that their charts have a past when somebody first looks.

Theory of operation. Beside the flow of everything stands one of each project that did something,
sealed with it second by second, so a page of one project that is opened now has the same points,
durations, ends and newest rows as one that was open all the time (decision 0034). What is counted
into a project's flow is what its own actions did: nothing of another project is ever in it.

Lifetimes. At most `MOST` projects are kept, those that did something last: a flow is half a
megabyte and some microseconds a second. Of a project that did nothing since the journal's oldest
entry it is known that nothing happened. Once a project was let go, that is known of nobody new any
more: such a flow begins there and then.

Of a few of them more is kept, coarser and for weeks (`weeks.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Final

import numpy as np

from domain.decisions import Finish
from tangram_web.live.flow import Flow
from tangram_web.live.histogram import BINS, PHASES
from tangram_web.live.history import LENGTH
from tangram_web.live.rings import moment
from tangram_web.live.weeks import Weeks

#: Projects whose last minutes are kept.
MOST: Final = 64
_NOTHING: Final = {"queued": 0.0, "granted": 0.0, "running": 0.0}
_NO_COUNTS: Final = np.zeros((len(PHASES), BINS), np.int64)
_NO_SUMS: Final = np.zeros(len(PHASES), np.float64)


class Pasts:
    """The flows of the projects that did something lately."""

    def __init__(self, whole: Flow, most: int = MOST) -> None:
        #: Says which second is open, and which was the first.
        self._whole = whole
        self._most = most
        self._flows: OrderedDict[str, Flow] = OrderedDict()
        #: The one that did something last.
        self._newest: str | None = None
        self._forgot = False
        #: Who folds the journal for good says what is stored.
        self.weeks = Weeks(most=0)

    def submit(self, project: str) -> None:
        """Count a submission of a project."""
        if (flow := self._of(project)) is not None:
            flow.submit()

    def finish(self, project: str, finish: Finish, at: float) -> None:
        """Count an end of a project's action."""
        if (flow := self._of(project)) is not None:
            flow.finish(finish, at)

    def skip_to(self, second: int) -> None:
        """Leave a long silence out, as the whole does."""
        for flow in self._flows.values():
            flow.skip_to(second)

    def seal(self, levels: Callable[[str], Mapping[str, float]], wall: int) -> None:
        """Close the open second, which began at ``wall``; ``levels`` are a project's at its end."""
        for project, flow in self._flows.items():
            now = levels(project)
            stirs = flow.stirred or any(now.values())
            if self.weeks.takes(project, wall, stirs=stirs):
                self.weeks.add(project, flow.moment(now, wall))
            flow.seal(now)
        for project in self.weeks.others(self._flows):
            now = levels(project)
            self.weeks.takes(project, wall, stirs=any(now.values()))
            self.weeks.add(project, moment(wall, 0, now, {}, _NO_COUNTS, _NO_SUMS))

    def part(self, project: str) -> Flow:
        """Return a copy of what is known of a project, for a fold that goes on from here."""
        known = self._flows.get(project)
        return self._begun() if known is None else deepcopy(known)

    def _of(self, project: str) -> Flow | None:
        """Return the flow to count into; None where none is kept, or nobody knows whose it is."""
        if project == self._newest:
            return self._flows[project]  # never the one that is let go
        if not self._most or not project:
            return None
        self._newest = project
        flow = self._flows.get(project)
        if flow is None:
            flow = self._flows[project] = self._begun()
            if len(self._flows) > self._most:
                self._flows.popitem(last=False)
                self._forgot = True
        else:
            self._flows.move_to_end(project)
        return flow

    def _begun(self) -> Flow:
        """Return the flow of a project that did nothing for as long as everything is known."""
        flow, now = Flow(), self._whole.history.open_second
        if now is not None and self._whole.began is not None:
            flow.begin(now if self._forgot else self._whole.began)
            flow.history.open_second = max(flow.began or 0, now - LENGTH)
            while flow.history.open_second < now:
                flow.seal(_NOTHING)
        return flow
