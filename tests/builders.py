"""Builders of the domain's objects for tests, with defaults for all that a test does not state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from domain import events
from domain.action import Action, EnvironmentSpec, ExecSpec, Kind, LeaseSpec, Outcome
from domain.apis import ApiConfig, CallSpec
from domain.decisions import Decision, Finish, Grant
from domain.fleets import FleetEngine, FleetSpec, GenerationSpec, WorkerSpec
from domain.ids import ActionId
from domain.inventory import Config, NodeInventory, PoolConfig, ProjectConfig, ResourceInventory
from domain.limits import Limits, Quota
from domain.resources import MILLI, parse_units
from managers.registry import load
from scheduler.core.machine import Machine

GIB = 2**30
#: Journal time at which scenarios start.
START = 1000.0

D = TypeVar("D")
make_ledger = load(()).make_ledger


def an_environment(memory_bytes: int = 0, **fields: Any) -> EnvironmentSpec:
    """Return an environment that reserves memory."""
    return EnvironmentSpec(memory_bytes=memory_bytes, **fields)


def an_action(
    name: str = "a",
    *,
    kind: Kind | str = Kind.EXEC,
    cost: Mapping[str, float | Sequence[float]] | None = None,
    memory_bytes: int = 0,
    **fields: Any,
) -> Action:
    """Return an action; without a cost an exec takes one core, everything else takes nothing."""
    kind = Kind(kind)
    if cost is None:
        cost = {"cpu": 1} if kind is Kind.EXEC else {}
    if memory_bytes:
        fields.setdefault("environment", an_environment(memory_bytes))
    if kind is Kind.EXEC:
        fields.setdefault("exec", ExecSpec(command=("true",)))
    elif kind is Kind.LEASE:
        fields.setdefault("lease", LeaseSpec(ttl_seconds=30.0))
    fields.setdefault("project", "default")
    fields.setdefault("task", "task")
    vector = {name: parse_units(count, f"/cost/{name}") for name, count in cost.items()}
    return Action(id=ActionId(name), kind=kind, cost=vector, **fields)


def a_lease(name: str, *, ttl_seconds: float = 30.0, **fields: Any) -> Action:
    """Return a lease."""
    return an_action(name, kind=Kind.LEASE, lease=LeaseSpec(ttl_seconds), **fields)


def a_noop(name: str, **fields: Any) -> Action:
    """Return an action of kind noop, which no node executes."""
    return an_action(name, kind=Kind.NOOP, **fields)


def a_fleet(slots: Sequence[int] = (1, 1), **fields: Any) -> FleetSpec:
    """Return a fleet whose workers ``w1``, ``w2``, … have these slots."""
    workers = tuple(
        WorkerSpec(f"w{number}", f"http://w{number}:8000", each)
        for number, each in enumerate(slots, 1)
    )
    return FleetSpec(FleetEngine.VLLM, workers=workers, **fields)


def a_generation(
    name: str,
    trajectory: str | None = None,
    *,
    fleet: str = "m",
    batch: str = "",
    batch_size: int = 0,
    **fields: Any,
) -> Action:
    """Return a request to the model of ``fleet``."""
    return an_action(
        name,
        kind=Kind.CALL,
        cost={f"fleet:{fleet}": 1},
        trajectory=trajectory,
        call=CallSpec(f"fleet:{fleet}", "POST", "/v1/chat/completions"),
        generation=GenerationSpec(batch, batch_size, 100),
        **fields,
    )


def a_node(
    name: str = "n1",
    *,
    cpus: int = 8,
    memory_bytes: int = 16 * GIB,
    pool: str = "default",
    identity: str = "",
    incarnation: int = 1,
    keeps_a_core: bool = False,
    yielding: float = 0,
    forks: bool = True,
    moves: bool = False,
    **resources: float,
) -> NodeInventory:
    """Return a node; further keywords are resources in units (``gpu=4``).

    ``keeps_a_core``: core 0 is beside the others, for light actions; ``yielding``: so much of light
    actions runs on all cores, beside their holders.
    """
    have = {"cpu": cpus * MILLI, "memory": memory_bytes}
    have |= {kind: round(count * MILLI) for kind, count in resources.items()}
    there = {kind: ResourceInventory(capacity) for kind, capacity in have.items()}
    if keeps_a_core:
        groups = (tuple(range(1, cpus + 1)),)
        there["cpu"] = ResourceInventory(
            have["cpu"], groups, shared_units=(0,), shared_capacity=MILLI // 2
        )
    if yielding:
        there["cpu"] = replace(there["cpu"], yielding_capacity=round(yielding * MILLI))
    return NodeInventory(
        name=name,
        identity=identity or f"{name}-disk",
        incarnation=incarnation,
        pool=pool,
        resources=there,
        forks=forks,
        moves=moves,
    )


def a_config(
    *,
    apis: Mapping[str, float] | None = None,
    pools: Iterable[str | PoolConfig] = ("default",),
    quotas: Mapping[str, Iterable[Quota]] | None = None,
    called: Mapping[str, ApiConfig] | None = None,
    **fields: Any,
) -> Config:
    """Return a configuration; ``apis={"search": 2}`` limits ``api:search`` to 2 at once.

    ``called`` says how APIs are called, by the name of the resource.
    """
    if quotas:
        limits = {f"api:{name}": Limits(tuple(each)) for name, each in quotas.items()}
        fields.setdefault("limits", limits)
    configs = [PoolConfig(pool) if isinstance(pool, str) else pool for pool in pools]
    fields.setdefault("projects", {"default": ProjectConfig("default")})
    return Config(
        pools={pool.name: pool for pool in configs},
        apis=dict(called or {}),
        resources={f"api:{name}": round(n * MILLI) for name, n in (apis or {}).items()},
        **fields,
    )


def a_quota(units: float, seconds: float = 0.0, **fields: Any) -> Quota:
    """Return a quota of so many units in a window of so many seconds; without: per day."""
    return Quota(round(units * MILLI), seconds, **fields)


def a_machine(nodes: Iterable[NodeInventory] = (), config: Config | None = None) -> Machine:
    """Return a machine that ``nodes`` have joined."""
    machine = Machine(make_ledger, config or a_config())
    joined = [events.NodeJoined(node=node, at=START) for node in nodes]
    if joined:
        machine.handle(*joined)
    return machine


def only(kind: type[D], decisions: Iterable[Decision]) -> list[D]:
    """Return the decisions of one kind."""
    return [decision for decision in decisions if isinstance(decision, kind)]


def granted(decisions: Iterable[Decision]) -> list[str]:
    """Return the granted actions, in that order."""
    return [grant.action_id for grant in only(Grant, decisions)]


def finished(decisions: Iterable[Decision]) -> dict[str, Outcome]:
    """Return the finished actions with their outcomes."""
    return {finish.action_id: finish.outcome for finish in only(Finish, decisions)}
