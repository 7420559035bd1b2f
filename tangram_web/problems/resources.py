"""Rows of the strip of resources: what is held, free, lost and wanted of each. Pure.

One row for each CPU pool, GPU pool, API and counted resource, stage of rollouts, and pool or fleet of language
models. What belongs to one node is in the rows of its pool.
Counts of waiting actions are those of the overview, so they equal those of Queues and Operate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from contract.fleet_status import FleetStatus
from domain.backends import LLM, owner_of
from tangram_web.lib.explorer_links import explorer_link
from tangram_web.problems.judge import SystemProblem
from tangram_web.problems.kinds import Severity
from tangram_web.problems.work_conditions import period_of

CPU: Final = "CPU"
GPU: Final = "GPU chunks"
API: Final = "APIs"
STAGES: Final = "Rollout stages"
FLEETS: Final = "LLM fleets"
_ORDER: Final = (API, STAGES, FLEETS)
#: Begins the names of the leases of stages.
_STAGE: Final = "stage:"
_STAGES: Final = {"init": "environments", "run": "turns of agents", "eval": "tests and rewards"}


class ResourceRow(msgspec.Struct, kw_only=True):
    """One resource. Amounts are in its unit; of nodes that are lost, ``lost`` has them apart."""

    id: str
    group: str
    name: str
    #: What it is, and the page that shows it.
    note: str = ""
    link: str = ""
    held: float = 0.0
    capacity: float = 0.0
    lost: float = 0.0
    #: Held and wanted together, as the lower bar draws it.
    wanted: float = 0.0
    unit: str = ""
    free_note: str = ""
    waiting: int = 0
    waiting_word: str = ""
    waiting_link: str = ""
    longest_seconds: float | None = None
    #: Severity and word of the chip; empty: nothing is wrong.
    state: str = ""
    chip: str = ""
    #: Held and wanted over time, oldest first, as shares of the capacity.
    trend: list[tuple[float, float]] = []

    @property
    def is_calm(self) -> bool:
        """Whether a small screen leaves it out: nothing waits and nothing is wrong."""
        return not self.waiting and not self.state


def resource_rows(
    overview: Mapping[str, Any] | None,
    resources: Mapping[str, Mapping[str, Any]] | None,
    fleets: Sequence[FleetStatus] = (),
    nodes: Collection[str] = (),
    *,
    project: str = "",
) -> list[ResourceRow]:
    """Return the rows that a reader of ``project`` sees; of all projects where it is empty.

    ``nodes``: names of nodes, whose own resources are left out.
    """
    found = overview or {}
    wanted = _wanted(found.get("wanted", ()))
    rows = [*_cpu_pools(found, wanted), *_gpu_pools(found, wanted)]
    shared = {n: r for n, r in (resources or {}).items() if n.partition(":")[2] not in nodes}
    rows += sorted(
        _counted(found, shared, wanted, project), key=lambda row: _ORDER.index(row.group)
    )
    rows += _fleets(fleets)
    return rows


def mark(rows: Iterable[ResourceRow], problems: Iterable[SystemProblem]) -> None:
    """Mark the rows that problems are about; the worst problem of a row counts."""
    by_id: dict[str, ResourceRow] = {row.id: row for row in rows}
    for problem in problems:
        for name in problem.condition.marks if problem.is_raised else ():
            row = by_id.get(name)
            if row is not None and not row.state:
                row.state, row.chip = problem.condition.severity, problem.condition.mark
    for row in by_id.values():
        if not row.state and row.waiting and row.capacity and row.held >= row.capacity:
            row.state, row.chip = Severity.WARNING.value if row.lost else "short", "short"


def _wanted(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(row["pool"], row["resource"]): row for row in rows}


def _cpu_pools(overview: Mapping[str, Any], wanted: Mapping[Any, Any]) -> Iterable[ResourceRow]:
    for pool in overview.get("pools", ()):
        name, need = pool["name"], wanted.get((pool["name"], "cpu"), {})
        if not (pool["cores_total"] or pool["cores_lost"] or need):
            continue
        serving = pool["nodes"] - pool["nodes_lost"]
        nodes = f"{serving} of {pool['nodes']}" if pool["nodes_lost"] else f"{serving}"
        lost = f"{pool['cores_lost']:,g} lost" if pool["cores_lost"] else ""
        yield _row(
            f"pool/{name}", CPU, name, need,
            note=f"{nodes} {'node' if nodes == '1' else 'nodes'}", link=f"/cpu/#{name}",
            held=pool["cores_held"], capacity=pool["cores_total"], lost=pool["cores_lost"],
            unit="cores", free_note=lost or _free(pool["cores_total"], pool["cores_held"]),
            waiting_link=explorer_link("actions", state="queued", waits="cpu", pool=name),
        )  # fmt: skip


def _gpu_pools(overview: Mapping[str, Any], wanted: Mapping[Any, Any]) -> Iterable[ResourceRow]:
    for pool in overview.get("pools", ()):
        name, gpus = pool["name"], pool.get("gpus") or {"held": 0, "total": 0, "lost": 0}
        need = wanted.get((name, "gpu"), {})
        if gpus["total"] or gpus["lost"] or need:
            yield _row(
                f"gpu/{name}", GPU, name, need, note=f"pool {name}", link=f"/gpu/#{name}",
                held=gpus["held"], capacity=gpus["total"], lost=gpus["lost"], unit="GPUs",
                free_note=_free(gpus["total"], gpus["held"]),
                waiting_link=explorer_link("actions", state="queued", waits="gpu", pool=name),
            )  # fmt: skip


def _counted(
    overview: Mapping[str, Any],
    resources: Mapping[str, Mapping[str, Any]],
    wanted: Mapping[tuple[str, str], Mapping[str, Any]],
    project: str,
) -> Iterable[ResourceRow]:
    fold = {row["name"]: row for row in overview.get("resources", ())}
    for name in sorted({*fold, *resources}):
        owner = (owner_of(name) or "") if name.startswith(LLM) else ""
        if owner and project and owner != project:
            continue
        need = _sum([row for (_, resource), row in wanted.items() if resource == name])
        yield _api(name, fold.get(name, {}), resources.get(name, {}), need)


def _api(
    name: str, fold: Mapping[str, Any], status: Mapping[str, Any], need: Mapping[str, Any]
) -> ResourceRow:
    quotas = status.get("quotas") or ()
    tightest = min(quotas, key=lambda each: each["left"] / max(1, each["units"]), default=None)
    capacity = float(status.get("capacity", fold.get("capacity", 0)))
    free = float(status.get("free", capacity - float(fold.get("held", 0))))
    held, note, unit = capacity - free, _note(name), ""
    if tightest is not None:
        held, capacity = float(tightest["used"]), float(tightest["units"])
        note, unit = f"quota {period_of(tightest)}", "units"
    group, short, link = _place(name)
    return _row(
        name, group, short, need, note=note, link=link,
        held=held, capacity=capacity, unit=unit, free_note=_free(capacity, held, quota=bool(quotas)),
        waiting_link=explorer_link("actions", state="queued", waits=name),
    )  # fmt: skip


def _place(name: str) -> tuple[str, str, str]:
    """Return the group of a counted resource, its name in it, and its page."""
    if name.startswith(_STAGE):
        stage = name.removeprefix(_STAGE)
        return STAGES, stage, f"/rollouts/?lane={stage}"
    if name.startswith(LLM):
        return FLEETS, name.removeprefix(LLM), "/rollouts/backends/"
    return API, name.removeprefix("api:"), f"/apis/#{name}"


def _note(name: str) -> str:
    if name.startswith(_STAGE):
        return _STAGES.get(name.removeprefix(_STAGE), "")
    if name.startswith(LLM):
        return "seats of backends"
    return "open calls" if name.startswith("api:") else "units in use"


def _fleets(fleets: Sequence[FleetStatus]) -> Iterable[ResourceRow]:
    for fleet in fleets:
        usable = [w for w in fleet.workers if not w.facts.unhealthy and not w.facts.drained]
        waiting = sum(w.waiting for w in fleet.workers) + sum(fleet.unrouted.values())
        held = sum(w.running for w in usable)
        capacity = sum(w.facts.slots for w in usable)
        lost = sum(w.facts.slots for w in fleet.workers if w.facts.unhealthy)
        replicas = len(fleet.workers)
        yield _row(
            f"fleet/{fleet.name}", FLEETS, fleet.name, {"waiting": waiting, "units": waiting},
            note=f"{replicas} {'replica' if replicas == 1 else 'replicas'}",
            link=f"/fleets/{fleet.name}/", held=held, capacity=capacity, lost=lost, unit="requests",
            free_note=_free(capacity, held), waiting_link=f"/fleets/{fleet.name}/",
        )  # fmt: skip


def _row(id_: str, group: str, name: str, need: Mapping[str, Any], **rest: Any) -> ResourceRow:
    return ResourceRow(
        id=id_, group=group, name=name, waiting=int(need.get("waiting", 0)),
        longest_seconds=need.get("oldest_seconds"),
        wanted=rest["held"] + float(need.get("units", 0)), **rest,
    )  # fmt: skip


def _sum(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if not rows:
        return {}
    return {
        "waiting": sum(row["waiting"] for row in rows),
        "units": sum(row["units"] for row in rows),
        "oldest_seconds": max(row["oldest_seconds"] for row in rows),
    }


def _free(capacity: float, held: float, *, quota: bool = False) -> str:
    left = max(0.0, capacity - held)
    if quota:
        return f"{left:,g} left" if left else "none left"
    return f"{left:,g} free" if left else "all held"
