"""Rows of actions: the changes of one batch of the journal, and the values of their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from contract.requests import ActionRequest, CallRequest
from domain.action import Action, ActionState
from domain.allocation import Allocation
from domain.apis import CallSpec
from domain.backends import LLM
from domain.bodies import STORED
from domain.codec import JournalEntry
from domain.decisions import Finish, Grant, Renew, Requeue, Resize
from domain.elasticity import Elasticity
from domain.events import ActionFinished, ActionStarted, ActionSubmitted
from domain.journal_reducer import JournalReducer, on
from domain.resources import Cost, units

#: A new row without values; its order is the order of the columns.
BLANK: dict[str, Any] = {
    "id": None, "project": None, "task": None, "trajectory": None, "pool": "", "kind": None,
    "family": None, "step": None, "group": None, "priority": 0, "state": ActionState.QUEUED.value,
    "outcome": None, "reward": None, "cost": "{}", "units": "{}", "node": None,
    "placement": None, "attempt": 1, "exit_code": None, "result": None, "detail": None,
    "metadata": "{}", "submitted_at": None, "granted_at": None, "started_at": None,
    "finished_at": None, "queue_seconds": None, "overhead_seconds": None,
    "execution_seconds": None, "act_seconds": None, "finished_seq": None, "spec": "{}",
    "widths": None, "used": None, "door": None, "submitted_by": None,
}  # fmt: skip
#: The part of it that is not null, which each insertion names.
DEFAULTS: Final = {name: value for name, value in BLANK.items() if value is not None}


#: State of an action that never changes again.
FINISHED: Final = ActionState.FINISHED.value


class ActionChange:
    """State of one action within a batch, and the changed columns of its row."""

    __slots__ = (
        "attempt",
        "columns",
        "cost",
        "explained",
        "is_new",
        "kind",
        "node",
        "project",
        "state",
        "step",
        "task",
        "trajectory",
    )

    def __init__(
        self,
        state: str,
        node: str | None,
        attempt: int,
        kind: str,
        project: str,
        task: str,
        trajectory: str | None,
        cost: str = "{}",
        step: int | None = None,
        explained: bool = False,
    ) -> None:
        self.cost = cost
        #: Its row has a detail.
        self.explained = explained
        self.step = step
        self.state = state
        self.node = node
        self.attempt = attempt
        self.kind = kind
        self.project = project
        self.task = task
        self.trajectory = trajectory
        self.columns: dict[str, Any] = {}
        #: There is no row yet, and ``columns`` is all of it.
        self.is_new = False

    def is_current(self, report: ActionStarted | ActionFinished) -> bool:
        """Return whether ``report`` is about the present attempt."""
        return self.node == report.node and self.attempt == report.attempt


class _ActionIds(JournalReducer):
    def __init__(self) -> None:
        super().__init__()
        self.submitted: set[str] = set()
        self.changed: set[str] = set()

    @on(ActionSubmitted)
    def _submitted(self, event: ActionSubmitted) -> None:
        self.submitted.add(event.action.id)

    @on(ActionStarted, ActionFinished, Grant, Renew, Requeue, Resize, Finish)
    def _changed(
        self, fact: ActionStarted | ActionFinished | Grant | Renew | Requeue | Resize | Finish
    ) -> None:
        self.changed.add(fact.action_id)


def changed_actions(entries: Iterable[JournalEntry]) -> tuple[set[str], set[str]]:
    """Return the ids of actions that ``entries`` submit, and of the others whose rows they may change."""
    found = _ActionIds()
    for entry in entries:
        found.reduce(entry)
    return found.submitted, found.changed - found.submitted


#: Characters of each output stream that a row stores; the journal has all of it while retained.
MAX_CHARACTERS: Final = 65536
#: A node keeps as many bytes by default, and marks what is missing.
_MARK_CHARACTERS: Final = 256


#: Fields of a request as an action has them, most of them without a value.
_USUALLY_NONE: Final = (
    "trajectory", "step", "group", "family", "environment", "key", "duration_seconds", "exec", "lease", "reward",
    "timeout_seconds", "queue_timeout_seconds",
)  # fmt: skip


def request_of(action: Action, cost: Mapping[str, Any] | None = None) -> ActionRequest:
    """Return the request that leads to ``action``; ``cost``: its `cost_of`, if known."""
    # Most fields have their default, and a keyword costs more than a comparison.
    request = ActionRequest(
        task=action.task,
        kind=action.kind,
        project=action.project,
        pool=action.pool or None,
        priority=action.priority,
        cost=cost_of(action.cost) if cost is None else cost,  # type: ignore[arg-type]
        malleable=action.malleable,
        replay_safe=action.replay_safe,
        metadata=action.metadata,
    )
    for name in _USUALLY_NONE:
        if (value := getattr(action, name)) is not None:
            setattr(request, name, value)
    if action.elasticity is not None:
        request.elasticity = _elasticity(action.elasticity)
    if action.call is not None:
        request.call = _call(action.call)
    return request


def _call(call: CallSpec) -> CallRequest:
    return CallRequest(
        call.target,
        call.method,
        call.path,
        call.headers,
        body=call.body if call.body else None,
        stream=call.stream,
        stored_body=call.stored_body,
    )


def cost_of(cost: Cost) -> dict[str, list[float | int]]:
    """Return feasible unit counts as a request writes them."""
    return {name: [units(milli) for milli in counts] for name, counts in cost.items()}


def units_of(allocations: tuple[Allocation, ...], node: str | None) -> dict[str, float | int]:
    """Return granted units under the names of a request's cost: ``cpu``, not ``cpu:n1``."""
    granted: dict[str, float | int] = {}
    for allocation in allocations:
        kind, _, owner = allocation.resource.partition(":")
        granted[kind if owner == node else allocation.resource] = units(allocation.amount)
    return granted


def placement_of(allocations: tuple[Allocation, ...], node: str | None) -> dict[str, object]:
    """Return the placement of allocations (`domain.allocation.Placement`; ``why`` only if given)."""
    found: dict[str, object] = {"node": node, "cpus": (), "shared": False, "gpus": ()}
    for allocation in allocations:
        if allocation.units and allocation.resource.startswith("cpu:"):
            found |= {"cpus": allocation.units, "shared": allocation.shared}
            found |= {"why": allocation.why} if allocation.why else {}
        elif allocation.resource.startswith("gpu:"):
            found["gpus"] = allocation.units
        elif allocation.units and allocation.resource.startswith(LLM):
            found["units"] = {allocation.resource: allocation.units}
    return found


def _elasticity(elasticity: Elasticity) -> dict[str, float]:
    if elasticity.amdahl is not None:
        return {"amdahl": elasticity.amdahl}
    return {str(units(milli)): efficiency for milli, efficiency in elasticity.table}


#: Returns a decoded result with its stored content filled in.
WholeResult = Callable[[Any], Any]


def as_reported(result: Any) -> Any:
    """Return a result as it was reported."""
    return result


def bounded_result(raw: msgspec.Raw, whole: WholeResult = as_reported) -> tuple[str, int | None]:
    """Return a reported result (msgpack) as JSON with bounded output, and its exit code.

    One that does not fit into a row keeps the reference to its stored content.
    """
    reported: Any = msgspec.msgpack.decode(raw)
    result = whole(reported)
    exit_code = None
    if isinstance(result, dict):
        exit_code = result.get("exit_code")
        for stream in ("stdout", "stderr", "body"):
            text = result.get(stream)
            if isinstance(text, str) and len(text) > MAX_CHARACTERS + _MARK_CHARACTERS:
                result[stream] = _cut(text)
                result["truncated"] = True
                if STORED in reported:
                    result[STORED] = reported[STORED]
    encoded = msgspec.json.encode(result).decode()
    return encoded, exit_code if isinstance(exit_code, int) else None


def _cut(text: str) -> str:
    """Return the beginning and the end of a text, with a mark of what is missing."""
    head = MAX_CHARACTERS // 4
    missing = len(text) - MAX_CHARACTERS
    mark = f"\n[tangram: {missing} of {len(text)} characters are missing here]\n"
    return text[:head] + mark + text[head + missing :]
