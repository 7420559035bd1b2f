"""The programs of a Tangram."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from tangram_web.lib import oom_scores
from tangram_web.supervisor.address import ServerAddress
from tangram_web.supervisor.children import Program
from tangram_web.supervisor.options import Options
from tangram_web.supervisor.part_placement import PartPlacement

#: The folder that holds our packages: the checkout, or site-packages.
ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str) -> tuple[str, ...]:
    """Return a command for the running Python interpreter."""
    return (sys.executable, *arguments)


def setup(address: ServerAddress, environment: Mapping[str, str]) -> Program:
    """Program that migrates the database, and makes a first user and token."""
    command = python("-m", "tangram_web", "setup", "--local-pool", "--url", address.url)
    return Program("setup", command, environment)


def web(address: ServerAddress, environment: Mapping[str, str]) -> Program:
    """Program that serves pages, the API and the gateway."""
    flags = {
        "--host": address.host,
        "--port": str(address.port),
        "--http": "tangram_web.serving.protocol:LimitedHttp",
        # Frames are compact already; deflating them costs more than it saves.
        "--ws-per-message-deflate": "false",
        "--timeout-graceful-shutdown": "2",
        "--log-level": "info",
    }
    arguments = [part for flag in flags.items() for part in flag]
    command = python("-m", "uvicorn", "tangram_web.asgi:application", *arguments, "--no-access-log")
    return Program("web", command, {**environment, **address.allowed_hosts(os.environ)})


def webs(address: ServerAddress, environment: Mapping[str, str], count: int) -> list[Program]:
    """Return the web processes: `web`, or ``count`` that share the port, the others numbered."""
    first = web(address, environment)
    if count == 1:
        return [first]
    where = ("--host", address.host, "--port", str(address.port))
    command = python("-m", "tangram_web.serving", *where, "--timeout-graceful-shutdown", "2")
    names = ("web", *(f"web-{number}" for number in range(2, count + 1)))
    return [replace(first, name=name, command=command) for name in names]


#: A node worker ends programs and services first, each with seconds of its own between SIGTERM and SIGKILL (`HostedThread`).
NODE_GRACE_SECONDS: Final = 15.0

#: Jobs run side by side in threads, so that none waits for another; other workers run none.
_POOL_OF_JOBS = ("-P", "threads", "-c", "4")


def worker(role: str, environment: Mapping[str, str], name: str | None = None) -> Program:
    """Celery worker that hosts a role (``loop``, ``node``, ``projector``, ``jobs``, ``rollout``), or several: ``loop,jobs``."""
    name = name or role
    has_jobs = "jobs" in role.split(",")
    # No gossip, mingle or heartbeat: workers exchange no messages. No checks: they load every view,
    # which a worker never needs, and `manage.py setup` has run them.
    command = python(
        *("-m", "celery", "-A", "tangram_web.celery", "--skip-checks", "worker"),
        *("-Q", "jobs" if has_jobs else role, "-n", f"{name}@%h"),
        *(_POOL_OF_JOBS if has_jobs else ("-P", "solo")),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        *("-l", "INFO"),
    )
    return Program(name, command, {**environment, "TANGRAM_ROLE": role})


class Workers(NamedTuple):
    """The workers of one start."""

    #: Without them no action runs, or is shown.
    needed: list[Program]
    #: They do not delay the start.
    later: list[Program]


def workers(
    options: Options, environment: Mapping[str, str], placement: PartPlacement, *, root: bool
) -> Workers:
    """Return the workers of a start: one for all parts with ``--together``, else one for each.

    ``root``: we run as root. Then commands of actions are started by a process of its own, which hosts
    nothing that reads the database or the configuration.
    """
    of_nodes = nodes(options, environment, placement)
    if not options.together:
        needed = [worker("projector", environment), worker("loop", environment), *of_nodes]
        return Workers(needed, [worker(role, environment) for role in ("jobs", "rollout")])
    roles = "loop,projector,jobs,rollout"
    if root or len(of_nodes) != 1:
        return Workers([worker(roles, environment, "worker"), *of_nodes], [])
    (node,) = of_nodes
    joint = worker(f"node,{roles}", {**node.environment, **environment}, "worker")
    return Workers([replace(joint, cpus=node.cpus, grace_seconds=node.grace_seconds)], [])


def nodes(
    options: Options, environment: Mapping[str, str], placement: PartPlacement
) -> list[Program]:
    """Return the node workers: the first is named after the machine, the others are numbered.

    Several on one machine divide the cores that are not shared.
    """
    partition = placement.partition
    first = os.environ.get("TANGRAM_NODE") or socket.gethostname()
    programs = []
    for number, declared in enumerate(share_cores(partition.grantable, options), start=1):
        suffix = "" if number == 1 else f"-{number}"
        own = {"TANGRAM_NODE": f"{first}{suffix}"}
        if declared:
            own["TANGRAM_NODE_CPUS"] = declared
            own["TANGRAM_NODE_RESERVED_CPUS"] = ",".join(map(str, sorted(partition.shared)))
        program = worker("node", {**environment, **own}, f"node{suffix}")
        programs.append(replace(program, cpus=partition.usable, grace_seconds=NODE_GRACE_SECONDS))
    return programs


def share_cores(cores: Sequence[int], options: Options) -> list[str]:
    """Return the declaration of cores of each node; empty: all cores of the machine.

    Several nodes on one machine get distinct cores while there are enough; beyond that each declares
    one core, which is then shared.
    """
    if options.cpus is not None:
        return [str(options.cpus)] * options.nodes
    if options.nodes == 1:
        return [""]
    shares = [cores[n :: options.nodes] or [cores[n % len(cores)]] for n in range(options.nodes)]
    # A single number is a count; a single core is written as a range.
    return [
        ",".join(map(str, share)) if len(share) > 1 else f"{share[0]}-{share[0]}"
        for share in shares
    ]


def demo(url: str, token: str, environment: Mapping[str, str]) -> Program:
    """Program that replays a few generated trajectories forever, as a trainer would.

    Faster than recorded: otherwise a user's first action could wait a minute for a test that holds all
    cores of a small machine.
    """
    load = ("--generate", "--trajectories", "8", "--speed", "3")
    command = python("-m", "tangram_client", "replay", *load)
    access = {"TANGRAM_URL": url, "TANGRAM_TOKEN": token}
    score = oom_scores.NEUTRAL
    return Program("demo", (*command, "--forever"), {**environment, **access}, oom_score=score)
