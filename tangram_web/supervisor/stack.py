"""The programs that together are a Tangram."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tangram_web.supervisor.children import Program
from tangram_web.supervisor.options import Options

#: The folder that holds our packages: the checkout, or site-packages.
ROOT = Path(__file__).resolve().parents[2]
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Address:
    """Where the web process serves."""

    host: str
    port: int

    @property
    def local_host(self) -> str:
        """A name under which this machine reaches it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def url(self) -> str:
        host = f"[{self.local_host}]" if ":" in self.local_host else self.local_host
        return f"http://{host}:{self.port}"

    def allowed_hosts(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the setting that lets browsers in under this machine's names."""
        if "TANGRAM_ALLOWED_HOSTS" in environment or self.host in _LOOPBACK:
            return {}
        names = ("localhost", "127.0.0.1", "[::1]", self.host, socket.gethostname())
        return {"TANGRAM_ALLOWED_HOSTS": ",".join(dict.fromkeys((*names, socket.getfqdn())))}


def python(*arguments: str) -> tuple[str, ...]:
    """Return a command for the Python that runs us."""
    return (sys.executable, *arguments)


def setup(address: Address, environment: Mapping[str, str]) -> Program:
    """Bring the database up to date, and make sure somebody can log in and submit."""
    command = python("-m", "tangram_web", "setup", "--url", address.url)
    return Program("setup", command, environment)


def web(address: Address, environment: Mapping[str, str]) -> Program:
    """Serve pages, the API and the gateway."""
    flags = {
        "--host": address.host,
        "--port": str(address.port),
        # Frames are small binary already; deflating them costs more than it saves.
        "--ws-per-message-deflate": "false",
        "--timeout-graceful-shutdown": "2",
        "--log-level": "info",
    }
    arguments = [part for flag in flags.items() for part in flag]
    command = python("-m", "uvicorn", "tangram_web.asgi:application", *arguments, "--no-access-log")
    return Program("web", command, {**environment, **address.allowed_hosts(os.environ)})


#: Jobs run side by side in threads, so that none waits for another; other workers run none.
_POOL_OF_JOBS = ("-P", "threads", "-c", "4")


def worker(role: str, environment: Mapping[str, str], name: str | None = None) -> Program:
    """Host one role (``loop``, ``node``, ``projector``, ``jobs``) in a Celery worker."""
    name = name or role
    # No gossip, mingle or heartbeat: workers have nothing to say to each other. No checks: they load
    # every view, which a worker never needs, and `manage.py setup` has run them.
    command = python(
        *("-m", "celery", "-A", "tangram_web.celery", "--skip-checks", "worker"),
        *("-Q", role, "-n", f"{name}@%h"),
        *(_POOL_OF_JOBS if role == "jobs" else ("-P", "solo")),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        *("-l", "INFO"),
    )
    return Program(name, command, {**environment, "TANGRAM_ROLE": role})


def nodes(options: Options, environment: Mapping[str, str]) -> list[Program]:
    """Return the node workers: the first is named after the machine, the others are numbered."""
    first = os.environ.get("TANGRAM_NODE") or socket.gethostname()
    cores = sorted(os.sched_getaffinity(0))
    programs = []
    for number, declared in enumerate(share_cores(cores, options), start=1):
        suffix = "" if number == 1 else f"-{number}"
        own = {"TANGRAM_NODE": f"{first}{suffix}"}
        if declared:
            own["TANGRAM_NODE_CPUS"] = declared
        programs.append(worker("node", {**environment, **own}, f"node{suffix}"))
    return programs


def share_cores(cores: Sequence[int], options: Options) -> list[str]:
    """Return what each node declares as its cores; empty: all that there are.

    Several nodes on one machine get distinct cores while there are enough, so that they do not
    promise the same core twice; beyond that each declares one core, which is then shared.
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
    """Play a few generated trajectories for ever, as a trainer would.

    Faster than recorded: a test that holds all cores of a small machine for a minute would be the
    first thing that somebody's own first action waits for.
    """
    load = ("--generate", "--trajectories", "8", "--speed", "3")
    command = python("-m", "tangram_client", "replay", *load)
    access = {"TANGRAM_URL": url, "TANGRAM_TOKEN": token}
    return Program("demo", (*command, "--forever"), {**environment, **access})
