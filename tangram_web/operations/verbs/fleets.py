"""Verbs on workers of fleets, and on the placement of trajectories.

Workers belong to all projects, so their verbs need the role in every project; a trajectory is pinned by operators of its project. What
these verbs change is live state of the scheduler (`domain.fleets`), no configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django import forms
from django.http import HttpRequest

from contract.fleet_status import FleetStatus, FleetWorkerStatus, RouteStatus
from contract.fleet_views import worker_names
from domain.errors import Conflict, NotFound
from domain.fleet_events import FleetWorkersChanged, TrajectoryPinned
from domain.fleets import WorkerFact
from domain.ids import TrajectoryKey
from tangram_web.accounts.models import Role
from tangram_web.lib import scheduler_client
from tangram_web.operations.audited_events import record_and_send
from tangram_web.operations.forms import TargetForm
from tangram_web.operations.verb import Effect, Target, Values, Verb, shell_line


def worker_target(name: str) -> Target:
    """Return the worker ``FLEET/WORKER`` as it is now. Raises NotFound, Unavailable."""
    fleet, _, worker = name.partition("/")
    for found in scheduler_client.fleets(fleet).fleets if fleet else ():
        for each in found.workers:
            if each.facts.name == worker:
                return Target(kind="worker", name=name, now=_facts(found, each))
    raise NotFound(f"there is no worker {name!r} of a fleet")


def _facts(fleet: FleetStatus, worker: FleetWorkerStatus) -> Values:
    others = [each for each in fleet.workers if each.facts.usable and each is not worker]
    return {
        "drained": worker.facts.drained,
        "unhealthy": worker.facts.unhealthy,
        "running": worker.running,
        "waiting": worker.waiting,
        "caches": worker.trajectories,
        "others": len(others),
    }


def trajectory_target(key: str) -> Target:
    """Return a trajectory, ``project/name``, with the fleets that know it. Raises NotFound, Unavailable."""
    found = scheduler_client.fleets(trajectory=key).fleets if "/" in key else []
    known = {each.name: _placed(each, each.route) for each in found if each.route is not None}
    if not known:
        raise NotFound(f"no fleet has a generation of a trajectory {key!r}")
    project = key.partition("/")[0]
    return Target(kind="trajectory", name=key, project=project, now={"fleets": known})


def _placed(fleet: FleetStatus, route: RouteStatus) -> dict[str, Any]:
    names = worker_names(fleet.workers)
    usable = {each.facts.name: each.facts.usable for each in fleet.workers}
    return {
        "worker": names.get(route.worker, ""),
        "pin": names.get(route.pin, ""),
        "usable": usable,
    }


class PinForm(TargetForm):
    """The worker that a trajectory is bound to, as ``FLEET/WORKER``."""

    worker = forms.ChoiceField(label="Worker")

    def begin(self, target: Target) -> None:
        """Offer the workers of all fleets that know the trajectory; its present one is chosen."""
        fleets = target.now["fleets"]
        self.initial.setdefault("worker", next(map(_present, fleets.items())))
        self.initial["worker"] = self._choose(
            "worker",
            {
                f"{fleet}/{name}": f"{name} of {fleet}" + ("" if usable else ", takes none now")
                for fleet, facts in fleets.items()
                for name, usable in facts["usable"].items()
            },
        )


def _present(fleet: tuple[str, Mapping[str, Any]]) -> str:
    name, facts = fleet
    return f"{name}/{facts['pin'] or facts['worker']}"


def _of_drain(target: Target, _: Values) -> Effect:
    now = target.now
    says = (
        "It gets no further generation. Those that run there continue. Those that wait, and the next ones of trajectories whose"
        " caches it has, go to other workers, where their prompts are processed again."
    )
    alone = "" if now["others"] else "no other worker of the fleet takes generations: all will wait"
    counts = {"running": now["running"], "waiting": now["waiting"], "caches": now["caches"]}
    return Effect(counts, says, alone)


def _of_undrain(target: Target, _: Values) -> Effect:
    now = target.now
    ill = f"it is unhealthy, and gets none until it answers: {now['unhealthy']}"
    counts = {"running": now["running"], "waiting": now["waiting"]}
    return Effect(counts, "It gets generations again.", ill if now["unhealthy"] else "")


def _set_drained(request: HttpRequest, target: Target, *, drained: bool) -> None:
    before = {"drained": target.now["drained"]}
    if before["drained"] == drained:
        return
    fleet, _, worker = target.name.partition("/")
    event = FleetWorkersChanged(fleet=fleet, facts=(WorkerFact(worker, drained=drained),))
    verb = "drain" if drained else "undrain"
    record_and_send(request, verb, target, before, {"drained": drained}, event)


def _worker_line(verb: str) -> Any:
    return lambda target, _: shell_line("tangram", "fleet", verb, *target.name.split("/", 1))


def _of_pin(target: Target, values: Values) -> Effect:
    says = (
        "From its next generation on it stays on the worker, whatever that has to do: no arrangement and no move changes it until"
        " the pin ends. The pin ends by itself if the worker takes no generations then."
    )
    fleet, _, worker = values.get("worker", "").partition("/")
    usable = target.now["fleets"].get(fleet, {}).get("usable", {}).get(worker, True)
    return Effect({}, says, "" if usable else f"{worker} takes no generations now")


def _pin(request: HttpRequest, target: Target, values: Values) -> None:
    fleet, _, worker = values["worker"].partition("/")
    before = {"fleet": fleet, "worker": target.now["fleets"][fleet]["pin"]}
    after = {"fleet": fleet, "worker": worker}
    if before == after:
        return
    record_and_send(request, "pin", target, before, after, _pinned(target, fleet, worker))


def _pinned(target: Target, fleet: str, worker: str) -> TrajectoryPinned:
    return TrajectoryPinned(fleet=fleet, trajectory=TrajectoryKey(target.name), worker=worker)


def _pins(target: Target) -> dict[str, str]:
    """Return fleet → worker of the pins of a trajectory."""
    fleets = target.now["fleets"].items()
    return {name: facts["pin"] for name, facts in fleets if facts["pin"]}


def _of_unpin(target: Target, _: Values) -> Effect:
    return Effect({"pins": len(_pins(target))}, "The policy of the fleet places it again.")


def _unpin(request: HttpRequest, target: Target, _: Values) -> None:
    pins = _pins(target)
    if not pins:
        raise Conflict("the trajectory is not pinned")
    events = [_pinned(target, fleet, "") for fleet in pins]
    before = {"worker": ", ".join(pins.values())}
    record_and_send(request, "unpin", target, before, {"worker": ""}, *events)


def _pin_line(target: Target, values: Values) -> str:
    fleet, _, worker = values.get("worker", "").partition("/")
    fleet = fleet or next(iter(target.now["fleets"]))
    name = target.name.partition("/")[2]
    return shell_line("tangram", "fleet", "pin", fleet, name, worker or "WORKER", *_project(target))


def _unpin_line(target: Target, _: Values) -> str:
    fleet = next(iter(_pins(target) or target.now["fleets"]))
    name = target.name.partition("/")[2]
    return shell_line("tangram", "fleet", "unpin", fleet, name, *_project(target))


def _project(target: Target) -> list[str]:
    return [] if target.project == "default" else ["--project", target.project]


ON_FLEETS: Final = (
    Verb(kind="worker", name="drain", title="Drain", role=Role.OPERATOR, undo="undrain", effect=_of_drain,
         do=lambda r, t, v: _set_drained(r, t, drained=True), line=_worker_line("drain")),
    Verb(kind="worker", name="undrain", title="Undrain", role=Role.OPERATOR, undo="drain", effect=_of_undrain,
         do=lambda r, t, v: _set_drained(r, t, drained=False), line=_worker_line("undrain")),
    Verb(kind="trajectory", name="pin", title="Pin", role=Role.OPERATOR, undo="unpin", effect=_of_pin,
         do=_pin, form=PinForm, line=_pin_line),
    Verb(kind="trajectory", name="unpin", title="Unpin", role=Role.OPERATOR, undo="pin", effect=_of_unpin,
         do=_unpin, line=_unpin_line),
)  # fmt: skip
