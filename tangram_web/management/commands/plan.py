"""``manage.py plan``: decide a scheduling problem given as JSON, without a running system.

    python manage.py plan < problem.json
    python manage.py plan --policy "fixed(4)" < problem.json

Reads JSON on standard input and writes JSON on standard output.
Bad input: one line on standard error that names the member, and exit code 2.

    {"depth": 2,
     "resources": {"cpu:n1": {"type": "units", "free": 8, "running": [2.0, 5.0]}},
     "waiting": [{"id": "a", "cost": {"cpu:n1": [1, 2, 4]}, "key": "cpu:n1", "duration_s": 10.0,
                  "elasticity": {"1": 1.0, "2": 0.95, "4": 0.8}}]}
    → {"selected": [{"id": "a", "units": {"cpu:n1": 4}}], "waiting": [], "objective_s": {"cpu:n1": 3.125}}

Amounts are units, times seconds from now. Errors are InvalidRequest with the member's JSON Pointer.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Annotated, Any, Literal

import msgspec
from django.core.management.base import BaseCommand, CommandParser
from msgspec import Meta

from domain.chunks import SIZES, Counts, gpus_of, level_of
from domain.elasticity import parse_elasticity
from domain.errors import InvalidRequest
from domain.ids import ActionId, ResourceId
from domain.resources import MAX_UNITS, MILLI, UnitRange, parse_units, units_of
from scheduler.core.advice.planner import (
    PlannedGrants,
    PlanningProblem,
    ResourceSnapshot,
    WaitingAction,
    plan_grants,
)
from scheduler.core.policies.paper import DEPTH
from scheduler.core.policies.registry import policy_forms, policy_named

Number = int | float
#: Largest declared time, a year; sums of times stay finite.
MAX_SECONDS = 31_536_000


class ResourceInput(msgspec.Struct, forbid_unknown_fields=True):
    """``units`` (cores of one node) and ``concurrency`` (calls at once) are plain counts.

    ``chunks`` are blocks of GPUs; their ``free`` lists the free blocks of 1, 2, 4 and 8.
    """

    type: Literal["units", "concurrency", "chunks"]
    #: Negative after the resource shrank below what runs.
    free: Number | list[int]
    #: Seconds until each running action that holds it ends.
    running: list[Number] = []


class ActionInput(msgspec.Struct, forbid_unknown_fields=True):
    """A waiting action."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    #: ResourceSnapshot → a count, a list of counts, or ``{"min": …, "max": …}``.
    cost: dict[str, Any] = {}
    key: str | None = None
    duration_s: Number | None = None
    #: Count → E(m), or ``{"amdahl": share}``.
    elasticity: dict[str, Any] | None = None


class ProblemInput(msgspec.Struct, forbid_unknown_fields=True):
    """A whole problem; ``waiting`` is in the order of arrival."""

    resources: dict[str, Any]
    waiting: list[ActionInput] = []
    depth: Annotated[int, Meta(ge=1, le=64)] = DEPTH


def parse_problem(text: str | bytes) -> tuple[PlanningProblem, int]:
    """Return the problem and its depth; raise InvalidRequest with the pointer of the wrong member."""
    try:
        raw = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {error}") from None
    payload: ProblemInput = _convert(raw, ProblemInput, "")
    have: dict[str, ResourceInput] = {
        name: _convert(each, ResourceInput, f"/resources/{name}")
        for name, each in payload.resources.items()
    }
    resources = {
        ResourceId(name): _resource(each, f"/resources/{name}") for name, each in have.items()
    }
    waiting = [_waiting(one, have, f"/waiting/{at}") for at, one in enumerate(payload.waiting)]
    seen: dict[str, int] = {}
    for at, one in enumerate(payload.waiting):
        if one.id in seen:
            first = f"/waiting/{seen[one.id]}"
            raise InvalidRequest(f"{one.id!r} is {first} already", pointer=f"/waiting/{at}/id")
        seen[one.id] = at
    return PlanningProblem(resources, waiting), payload.depth


def plan_to_json(plan: PlannedGrants) -> dict[str, Any]:
    """Return a plan as plain values."""
    return {
        "selected": [
            {"id": name, "units": units_of(units)} for name, units in plan.selected.items()
        ],
        "waiting": [{"id": name, "reason": reason} for name, reason in plan.waiting.items()],
        "objective_s": plan.objective_seconds,
    }


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the member {twice!r} is repeated in one object")
    return members


def _convert(value: Any, kind: Any, pointer: str) -> Any:
    """Return ``value``, found at ``pointer``, as a ``kind``."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        below = path.strip("`$").replace("[", "/").replace("]", "").replace(".", "/")
        raise InvalidRequest(message, pointer=f"{pointer}{below}") from None


def _resource(have: ResourceInput, pointer: str) -> ResourceSnapshot:
    for at, seconds in enumerate(have.running):
        if not 0 <= seconds <= MAX_SECONDS:
            raise InvalidRequest(
                f"{seconds!r} is not a number of seconds from now",
                pointer=f"{pointer}/running/{at}",
            )
    running = [float(seconds) for seconds in have.running]
    if have.type == "chunks":
        chunks = _chunks(have.free, f"{pointer}/free")
        return ResourceSnapshot(gpus_of(chunks) * MILLI, running, chunks)
    if isinstance(have.free, list):
        raise InvalidRequest(f"free {have.type} are one number", pointer=f"{pointer}/free")
    if not abs(have.free) <= MAX_UNITS:
        raise InvalidRequest(
            f"{have.free!r} is not a count up to {MAX_UNITS}", pointer=f"{pointer}/free"
        )
    return ResourceSnapshot(math.floor(have.free * MILLI), running)


def _chunks(free: Number | list[int], pointer: str) -> Counts:
    if not isinstance(free, list) or len(free) != len(SIZES):
        raise InvalidRequest("free chunks are four counts: of 1, 2, 4 and 8", pointer=pointer)
    for at, count in enumerate(free):
        if not 0 <= count <= MAX_UNITS:
            raise InvalidRequest(
                f"{count!r} is not a count up to {MAX_UNITS}", pointer=f"{pointer}/{at}"
            )
    one, two, four, eight = free
    return (one, two, four, eight)


def _waiting(one: ActionInput, resources: dict[str, ResourceInput], pointer: str) -> WaitingAction:
    cost = {}
    for name, counts in one.cost.items():
        where = f"{pointer}/cost/{name}"
        if name not in resources:
            raise InvalidRequest(f"there is no resource {name!r}", pointer=where)
        cost[name] = parse_units(_convert(counts, Number | list[Number] | UnitRange, where), where)
        if resources[name].type == "chunks" and None in map(level_of, cost[name]):
            raise InvalidRequest(f"a chunk has 1 to {SIZES[-1]} whole GPUs", pointer=where)
    if one.key is not None and one.key not in cost:
        raise InvalidRequest(f"{one.key!r} is not in the cost", pointer=f"{pointer}/key")
    seconds = one.duration_s
    if seconds is not None and not 0 < seconds <= MAX_SECONDS:
        raise InvalidRequest(
            f"{seconds!r} is not a duration: give seconds above 0, up to a year",
            pointer=f"{pointer}/duration_s",
        )
    elasticity = None
    if one.elasticity is not None:
        where = f"{pointer}/elasticity"
        profile = {
            count: _convert(share, float, f"{where}/{count}")
            for count, share in one.elasticity.items()
        }
        elasticity = parse_elasticity(profile, where)
    return WaitingAction(ActionId(one.id), cost, one.key, seconds, elasticity)


class Command(BaseCommand):
    """Decide one problem by the policy of a pool."""

    help = "Read a scheduling problem as JSON on standard input, write the decision as JSON."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the option for the policy."""
        parser.add_argument("--policy", default="paper", help=f"one of {', '.join(policy_forms())}")

    def handle(self, *args: Any, **options: Any) -> None:
        """Write the decision and its duration."""
        try:
            policy_named(options["policy"])  # before waiting for input
            problem, depth = parse_problem(sys.stdin.buffer.read())
        except InvalidRequest as error:
            where = f"{error.pointer}: " if error.pointer else ""
            self.stderr.write(" ".join(f"plan: {where}{error}".split()))
            sys.exit(2)
        policy = policy_named(options["policy"], depth=depth)
        began = time.perf_counter()
        plan = plan_grants(problem, policy)
        took = time.perf_counter() - began
        self.stdout.write(json.dumps({**plan_to_json(plan), "decision_us": round(took * 1e6)}))
