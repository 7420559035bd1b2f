"""A Tangram of real processes, each of which can be killed, stopped and started again by name.

No supervisor restarts them: a test that kills a part starts it again itself, so that it knows
when. Programs and settings are those of `tangram up`, with a standby loop beside the leader.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import psycopg
import redis

from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import connect
from tangram_client import Client
from tangram_client._calls import apply_config
from tangram_web.supervisor import stack
from tangram_web.supervisor.address import ServerAddress
from tangram_web.supervisor.children import Program
from tangram_web.supervisor.data_folder import DataFolder
from tangram_web.supervisor.redis_server import EmbeddedRedis, choose_redis
from tests.faults.code_trees import PRESENT, CodeTree
from tests.faults.leftovers import end_leftovers
from tests.faults.network import Network
from tests.faults.process import Part
from tests.ports import free_port
from tests.postgres_server import PostgresServer

READY_WITHIN_SECONDS = 240.0


def _numbered(role: str, number: int) -> str:
    return role if number == 1 else f"{role}-{number}"


class System:
    """All parts, by name: redis, loop-1, loop-2, node, projector, web.

    Further nodes are n2, n3, … (parts node-2, …) and further web processes web-2, …, each on a
    loopback address of its own, as if on machines of their own. ``jobs`` adds a jobs worker, ``rollout_workers`` as many
    (rollout, rollout-2, …).
    """

    def __init__(
        self,
        directory: Path,
        *,
        cpus: int = 1000,
        environment: Mapping[str, str] | None = None,
        redis_directory: Path | None = None,
        postgres: PostgresServer | None = None,
        nodes: int = 1,
        webs: int = 1,
        jobs: bool = False,
        proxied: bool = False,
        tcp: bool = False,
        rollout_workers: int = 0,
        together: bool = False,
        code: CodeTree = PRESENT,
    ) -> None:
        """``proxied``: the parts reach Redis and PostgreSQL through `Network`s, which tests disturb; ``tcp``: Redis by TCP with a
        password, as beside PostgreSQL, and not by a socket; ``together``: one part, worker, hosts the loop, the projector and the
        jobs, as with `up --together`; ``code``: that of all parts, and of what an operator runs.
        """
        self.code = code
        self.home = DataFolder.open(directory / "home")
        self.keys = Keys()
        server = choose_redis(self.home, {})
        self.redis_url = server.url
        port = free_port()
        self.addresses = [ServerAddress(f"127.0.0.{n}", port) for n in range(1, webs + 1)]
        self.address = self.addresses[0]
        self._common = {
            "TANGRAM_HOME": str(self.home.path),
            "TANGRAM_REDIS_URL": server.url,
            "TANGRAM_NODE": "n1",
            "TANGRAM_BODIES_DIRECTORY": str(self.home.path / "bodies"),
            "TANGRAM_ALLOWED_HOSTS": "localhost,127.0.0.1,127.0.0.2,127.0.0.3",
            **(environment or {}),
        }
        self.parts: dict[str, Part] = {}
        assert isinstance(server, EmbeddedRedis)
        if redis_directory is not None:
            server = replace(server, folder=redis_directory)
        self.postgres = postgres
        #: By name of the part behind it: redis, postgres.
        self.networks: dict[str, Network] = {}
        if proxied or (postgres is None and not tcp):
            self._add(replace(server.program(), environment=environment or {}))
        else:
            self._use_tcp(server)
        if postgres is not None:
            self._common["DATABASE_URL"] = postgres.url
        if proxied:
            self._put_networks_between(server)
        if together:
            self._add(stack.worker("loop,projector,jobs", self._common, "worker"))
        self._add_workers(cpus, nodes, rollout_workers, jobs=jobs, together=together)
        for number, address in enumerate(self.addresses, start=1):
            web = stack.web(address, self._common)
            self._add(replace(web, name=_numbered("web", number)))
        self.token = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of its programs."""
        return self._common

    def _add_workers(
        self, cpus: int, nodes: int, rollout_workers: int, *, jobs: bool, together: bool
    ) -> None:
        if not together:
            for program in (
                stack.worker("loop", self._common, "loop-1"),
                stack.worker("loop", self._common, "loop-2"),
                stack.worker("projector", self._common),
                *([stack.worker("jobs", self._common)] if jobs else []),
            ):
                self._add(program)
        for number in range(1, nodes + 1):
            own = {"TANGRAM_NODE": f"n{number}", "TANGRAM_NODE_CPUS": str(cpus)}
            self._add(stack.worker("node", {**self._common, **own}, _numbered("node", number)))
        for number in range(1, rollout_workers + 1):
            own = {"TANGRAM_ROLLOUT_WORKER": f"r{number}"}
            name = _numbered("rollout", number)
            self._add(stack.worker("rollout", {**self._common, **own}, name))

    def _use_tcp(self, server: EmbeddedRedis) -> None:
        """Reach Redis as other machines do: by TCP, with a password."""
        port, password = free_port(), "secret of a test"
        flags = ("--port", str(port), "--bind", "127.0.0.1", "--requirepass", password)
        self._add(replace(server.program(), command=(*server.program().command, *flags)))
        self.redis_url = f"redis://:{quote(password)}@127.0.0.1:{port}/0"
        self._common["TANGRAM_REDIS_URL"] = self.redis_url

    def _put_networks_between(self, server: EmbeddedRedis) -> None:
        """Let the parts reach Redis, and PostgreSQL if there is one, through proxies."""
        between = self.home.redis / "network.sock"
        self.networks["redis"] = Network(between, server.socket)
        self._common["TANGRAM_REDIS_URL"] = replace(server, socket=between).url
        if self.postgres is not None:
            port = free_port()
            address = ("127.0.0.1", port)
            self.networks["postgres"] = Network(address, ("127.0.0.1", self.postgres.port))
            url = self.postgres.url.replace(f":{self.postgres.port}/", f":{port}/")
            self._common["DATABASE_URL"] = url

    def _add(self, program: Program) -> None:
        self.parts[program.name] = Part(program, self.home.log(program.name), self.code)

    def __getitem__(self, name: str) -> Part:
        return self.parts[name]

    def start(self) -> None:
        """Start everything and wait until it works."""
        self._prepare()
        for part in self.parts.values():
            if part.name != "redis":
                part.start()
        self.wait_until_served()

    def start_only(self, *names: str) -> dict[str, str]:
        """Start Redis and these parts, waiting for nothing; return how to get in."""
        access = self._prepare()
        for name in names:
            self[name].start()
        return access

    def _prepare(self) -> dict[str, str]:
        self["redis"].start()
        setup = stack.setup(self.address, self._common)
        access: dict[str, str] = json.loads(self._run(setup.command, setup.environment))
        self.token = access["token"]
        return access

    def manage(self, *words: str) -> str:
        """Run a command of ``manage.py``, as an operator does."""
        return self._run((sys.executable, "manage.py", *words), self._common)

    def _run(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        return subprocess.run(
            self.code.command(command), cwd=self.code.folder, env={**os.environ, **environment}, check=True,
            stdout=subprocess.PIPE, text=True,
        ).stdout  # fmt: skip

    def stop(self) -> None:
        """End everything of ours, Redis last."""
        for part in reversed(self.parts.values()):
            if part.alive:
                part.signal(signal.SIGCONT)
            part.end()
        for network in self.networks.values():
            network.close()
        end_leftovers(self.home.path)

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """Look into Redis."""
        with connect(self.redis_url) as client:
            yield client

    def leader(self) -> Part:
        """Return the loop that leads; waits until one does."""
        until = time.monotonic() + READY_WITHIN_SECONDS
        while time.monotonic() < until:
            with self.client() as client:
                name = client.get(self.keys.leader)
            for part in (self["loop-1"], self["loop-2"]):
                if isinstance(name, bytes) and f":{part.pid}:" in name.decode() and part.alive:
                    return part
            time.sleep(0.01)
        raise AssertionError("no loop leads")

    def standby(self) -> Part:
        """Return the loop that does not lead."""
        leader = self.leader()
        return self["loop-2"] if leader is self["loop-1"] else self["loop-1"]

    def wait_until_served(self) -> float:
        """Return after how many seconds a new action is carried out to its end."""
        began = time.monotonic()
        while time.monotonic() < began + READY_WITHIN_SECONDS:
            if self._serves():
                return time.monotonic() - began
            time.sleep(0.02)
        raise AssertionError(f"no service: {self.tails()}")

    def wait_until_whole(self) -> None:
        """Wait until every process shows life, the standby too, and a new action is carried out."""
        workers = [
            p for name, p in self.parts.items() if name.split("-")[0] not in ("redis", "web")
        ]
        until = time.monotonic() + READY_WITHIN_SECONDS
        while time.monotonic() < until:
            with self.client() as client:
                rows = cast("dict[bytes, bytes]", client.hgetall(self.keys.workers))
            shown = {json.loads(row)["pid"] for row in rows.values()}
            if all(part.pid in shown for part in workers if part.alive):
                self.wait_until_served()
                return
            time.sleep(0.1)
        raise AssertionError(f"not every process shows life: {self.tails()}")

    def status(self) -> Any:
        """Return the leader's status."""
        return self.ask("GET", "/api/v1/status")

    def running(self) -> int:
        """Return how many actions run, from the leader's status."""
        return sum(pool["running"] for pool in self.status()["pools"].values())

    def drain(self, node: str) -> None:
        """Grant nothing more on a node, and wait until nothing runs there."""
        self.ask("POST", f"/api/v1/nodes/{node}/drain", {"reason": "upgrade"})
        until = time.monotonic() + READY_WITHIN_SECONDS
        while time.monotonic() < until:
            cores = self._node(node)["resources"]["cpu"]
            if cores["free"] == cores["capacity"]:
                return
            time.sleep(0.1)
        raise AssertionError(f"{node} is still busy: {self._node(node)}")

    def resume(self, node: str) -> None:
        """Grant on a node again."""
        self.ask("POST", f"/api/v1/nodes/{node}/resume", {})

    def _node(self, name: str) -> Any:
        return next(node for node in self.status()["nodes"] if node["name"] == name)

    @cached_property
    def operator(self) -> str:
        """A token with the scope to operate the whole system."""
        return self._new_token("operator", "read", "operate")

    @cached_property
    def admin(self) -> str:
        """A token with the scope to change everything."""
        return self._new_token("admin", "admin")

    def apply(self, text: str) -> None:
        """Apply documents of the configuration."""
        with Client(self.address.url, self.admin) as client:
            client.send(apply_config(text))

    def _new_token(self, name: str, *scopes: str) -> str:
        given = (word for scope in scopes for word in ("--scope", scope))
        return self.manage("token", "--name", name, *given).strip()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request of an operator; return its answer."""
        headers = {"Authorization": f"Bearer {self.operator}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.address.url + path, data, headers, method=method)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return json.load(answer)

    def _serves(self) -> bool:
        body = json.dumps({"task": "probe", "kind": "noop"}).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        url = f"{self.address.url}/api/v1/actions?wait=5"
        try:
            asked = urllib.request.Request(url, body, headers)
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def outcomes_in_rows(self) -> dict[str, str | None]:
        """Return action id → outcome, as the database has it."""
        question = "select id, outcome from records_actionrecord"
        if self.postgres is not None:
            with psycopg.connect(self.postgres.url) as database:
                return dict(database.execute(question).fetchall())
        path = self.home.path / "tangram.sqlite3"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=120) as rows:
            return dict(rows.execute(question))

    def tails(self) -> str:
        """Return the ends of all logs, for the report of a failed test."""
        return "\n".join(
            f"--- {part.name} ({'alive' if part.alive else 'dead'})\n"
            + "\n".join(part.log.read_text(errors="replace").splitlines()[-8:])
            for part in self.parts.values()
            if part.log.exists()
        )

    def remove(self) -> None:
        """Delete its data."""
        shutil.rmtree(self.home.path.parent, ignore_errors=True)
