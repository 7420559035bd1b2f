"""How the actions and rollouts of each task ended lately, for tasks that fail.

Endings are counted in buckets of `BUCKET_SECONDS`; those older than `WINDOW_SECONDS` are dropped. Memory
is bounded by `MAX_TASKS` tasks, those that ended something last. A command whose exit code is not 0 is a
failure here: whether most of a task's commands may fail is a question of the threshold.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Final

from domain.action import Outcome
from domain.decisions import Finish, FinishRollout
from domain.ids import TaskKey, task_key
from domain.rollouts import RolloutOutcome

WINDOW_SECONDS: Final = 600
BUCKET_SECONDS: Final = 10
MAX_TASKS: Final = 2000
#: Tasks with failures that are listed, those with most of them.
MAX_LISTED: Final = 20
#: Kinds of failure that are listed of a task.
MAX_ENDINGS: Final = 3
_FAILURES: Final = frozenset(
    {Outcome.TIMEOUT, Outcome.OOM_KILLED, Outcome.INFRA_FAILED, Outcome.UNKNOWN}
)


def failure_of(outcome: Outcome, exit_code: int | None) -> str:
    """Return the name of a failure, as in ``exit code 137``; empty for an action that did not fail."""
    if outcome is Outcome.COMPLETED:
        return f"exit code {exit_code}" if exit_code else ""
    return outcome.value.replace("_", " ") if outcome in _FAILURES else ""


@dataclass
class _Counts:
    """Ends in one bucket, or in all of a window."""

    number: int = 0
    finished: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    rollouts: int = 0
    unrewarded: int = 0

    def subtract(self, old: _Counts) -> None:
        """Take the ends of a bucket away that leaves the window."""
        self.finished -= old.finished
        self.failures -= old.failures
        self.rollouts -= old.rollouts
        self.unrewarded -= old.unrewarded


@dataclass
class _Task:
    project: str
    name: str
    buckets: deque[_Counts] = field(default_factory=deque)
    window: _Counts = field(default_factory=_Counts)
    #: Journal time of the newest reward; None: no rollout of it had one.
    rewarded_at: float | None = None

    def add(self, at: float, failure: str = "", *, rollout: bool = False) -> None:
        """Count an end at ``at``: of an action, or of a rollout without a reward where ``failure``."""
        number = int(at // BUCKET_SECONDS)
        if not self.buckets or self.buckets[-1].number < number:
            self.buckets.append(_Counts(number))
        for counts in (self.buckets[-1], self.window):
            if rollout:
                counts.rollouts += 1
                counts.unrewarded += bool(failure)
            else:
                counts.finished += 1
                if failure:
                    counts.failures[failure] += 1

    def forget(self, at: float) -> None:
        """Drop the buckets that are older than the window."""
        while self.buckets and (self.buckets[0].number + 1) * BUCKET_SECONDS <= at - WINDOW_SECONDS:
            self.window.subtract(self.buckets.popleft())


class TaskEndings:
    """Recent ends by task."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[TaskKey, _Task] = OrderedDict()
        #: The task that ended something last.
        self._last: TaskKey | None = None
        #: The newest rows, and the journal second that they show.
        self._rows: list[dict[str, Any]] = []
        self._second = -1

    def finish(self, decision: Finish, at: float, exit_code: int | None) -> None:
        """Count the end of an action."""
        if decision.task:
            failure = failure_of(decision.outcome, exit_code)
            self._task(decision.project, decision.task).add(at, failure)

    def finish_rollout(self, decision: FinishRollout, at: float) -> None:
        """Count the end of a rollout; one that was cancelled says nothing about its task."""
        result = decision.result
        if result.outcome is RolloutOutcome.CANCELLED:
            return
        task = self._task(decision.project, decision.task)
        task.add(at, failure="" if result.reward is not None else "no reward", rollout=True)
        if result.reward is not None:
            task.rewarded_at = at

    def rows(self, at: float, wall_offset: float) -> list[dict[str, Any]]:
        """Return the tasks with failures or rollouts without a reward, those with most first."""
        if self._second != int(at):
            self._second = int(at)
            for task in self._tasks.values():
                task.forget(at)
            found = [_row(each, wall_offset) for each in self._tasks.values() if _fails(each)]
            found.sort(key=lambda r: (-r["failed"] - r["unrewarded"], r["project"], r["task"]))
            self._rows = found[:MAX_LISTED]
        return self._rows

    def _task(self, project: str, name: str) -> _Task:
        key = task_key(project, name)
        if key == self._last:
            return self._tasks[key]  # the last one is never dropped
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = _Task(project, name)
            if len(self._tasks) > MAX_TASKS:
                self._tasks.popitem(last=False)
        self._tasks.move_to_end(key)
        self._last = key
        return task


def _fails(task: _Task) -> bool:
    return bool(task.window.failures or task.window.unrewarded)


def _row(task: _Task, wall_offset: float) -> dict[str, Any]:
    window = task.window
    return {
        "project": task.project,
        "task": task.name,
        "finished": window.finished,
        "failed": window.failures.total(),
        "endings": dict(window.failures.most_common(MAX_ENDINGS)),
        "rollouts": window.rollouts,
        "unrewarded": window.unrewarded,
        "rewarded_at": None if task.rewarded_at is None else task.rewarded_at + wall_offset,
    }
