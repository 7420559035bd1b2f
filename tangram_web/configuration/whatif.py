"""What-if: the last minutes of the journal, played under the edited configuration. Simulated.

Policies are compared in one simulation. A limit belongs to the cluster of a simulation, so changed
limits are two: as it is, and as it would be.
"""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest

from domain.errors import InvalidRequest
from domain.inventory import Config
from simulator.request import Request
from tangram_web.pools.applying import Change
from tangram_web.simulations.inputs import present_cluster
from tangram_web.simulations.models import Simulation
from tangram_web.simulations.services import simulation_create

WINDOW_SECONDS: Final = 300


def what_if(
    http: HttpRequest, changes: list[Change], config: Config, project: str
) -> list[Simulation]:
    """Ask for the simulations that tell what ``changes`` would do to a project's last minutes.

    Raises InvalidRequest where a simulation cannot tell, or nothing ran.
    """
    pool = config.projects[project].default_pool
    now = config.pools[pool].policy
    after = next((c.after or {} for c in changes if (c.kind, c.name) == ("Pool", pool)), None)
    policy = now if after is None else after.get("policy", now)
    limits = {
        c.name: c.after["limit_units"]
        for c in changes
        if c.kind == "Resource" and c.after and c.after.get("limit_units")
    }
    if policy == now and not limits:
        raise InvalidRequest(
            f"a simulation can tell about policies of {project}'s pool and about limits; "
            "these changes are neither"
        )
    nodes, cores = present_cluster()
    common = {"workload": "recorded", "nodes": nodes, "cores": cores}

    def ask(title: str, policies: tuple[str, ...], limits: dict[str, int]) -> Simulation:
        request = Request(policies=policies, limits=limits, **common)  # type: ignore[arg-type]
        return simulation_create(
            http=http, project=project, request=request, title=title, window_seconds=WINDOW_SECONDS
        )

    revision = config.revision
    if not limits:
        return [ask(f"What if, revision {revision}: {now} or {policy}", (now, policy), {})]
    return [
        ask(f"What if, revision {revision}: as it is", (now,), {}),
        ask(f"What if, revision {revision}: as it would be", (policy,), limits),
    ]
