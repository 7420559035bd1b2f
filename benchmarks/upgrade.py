"""upgrade: every part is replaced, one after the other, while trainers submit without a pause; what is lost, and the longest stall.

    python -m benchmarks.upgrade                                       the present code replaces itself
    python -m benchmarks.upgrade --from REVISION [--engine ray]        the present code replaces that of a revision, or of another checkout
    python -m benchmarks.upgrade --from REVISION --rollback            the revision replaces the present code
    python -m benchmarks.upgrade --from REVISION --postgres            rows are in PostgreSQL, not in SQLite

In the order of docs/operations.md: migrations, loops (the standby takes over from the leader), projector and jobs, web processes, nodes;
a rollback in the reverse order, without migrations. ``--engine`` says who starts the node workers (`benchmarks.upgrade_nodes`).

Targets: no accepted action is lost, none runs twice, none ends but by itself, no trajectory leaves its node without a move of its environment, the SDK, with its own policy, shows its
caller no error, every use of `benchmarks.upgrade_probe` works in every mixture, and no process of the former code is left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import name_paths, quantiles, store
from benchmarks.steady_trainers import SteadyTrainers
from benchmarks.upgrade_nodes import (
    ENGINES,
    GROUP,
    MANY_CPUS,
    NODES,
    NodeWorkers,
    OfThisMachine,
    cluster_of,
    until,
)
from benchmarks.upgrade_probe import FIRST, LAST, MixtureProbe
from domain.decisions import Decision, EndMove, Finish
from domain.events import ActionSubmitted
from scheduler.runtime.redis.journal import START, Journal
from tangram_client import Client
from tests.faults.audit import Audit
from tests.faults.code_trees import PRESENT, CodeTree, NoSuchCode, code_of, interpreter
from tests.faults.system import System
from tests.postgres_server import PostgresServer

#: Steps in the order of an upgrade; a rollback has the reverse order.
PARTS: Final = ("standby", "leader", "projector", "jobs", "web", "web-2")
TARGETS: Final = (
    "lost", "ended_twice", "ran_twice", "not_completed", "strayed_trajectories", "errors_of_the_sdk", "uses_failed", "processes_of_the_former_code",
)  # fmt: skip


class Drill:
    """One installation, its trainers, and the parts that were replaced."""

    def __init__(
        self,
        directory: Path,
        trainers: int,
        nodes: NodeWorkers,
        codes: tuple[CodeTree, CodeTree],
        postgres: PostgresServer | None,
    ) -> None:
        """``codes``: the former and the next one. ``postgres``: keeps the rows; None: SQLite."""
        environment = {
            "TANGRAM_NODE_ISOLATION": "process", "TANGRAM_JOURNAL_SECONDS": "7200", "TANGRAM_SECRET_KEY": "of a drill, " * 8,
        }  # fmt: skip
        self.former, self.next = codes
        self.nodes = nodes
        self._in_place = isinstance(nodes, OfThisMachine)
        self._folder, self._trainers = directory, trainers
        self.rows: dict[str, dict[str, float]] = {}
        self.system = System(
            directory, cpus=MANY_CPUS, nodes=NODES, webs=2, jobs=True, environment=environment, tcp=True, code=self.former,
            postgres=postgres,
        )  # fmt: skip

    def begin(self) -> None:
        """Start everything, the nodes too, and the trainers."""
        system = self.system
        system.start_only("loop-1", "loop-2", "projector", "jobs", "web", "web-2")
        until(self._answers, "a web process answers")
        self._start_nodes(NODES - 1)
        self.audit = Audit(system)
        self.probe = MixtureProbe(system)
        urls = [each.url for each in system.addresses]
        self.load = SteadyTrainers(urls, system.token, self._folder / "ran", self._trainers)
        self.load.start()
        self.load.wait_for(4 * self._trainers)
        self.probe.look(FIRST)

    def _start_nodes(self, count: int) -> None:
        self.nodes.start(self.system, count)
        until(lambda: set(self._ready()) == set(self.nodes.names[:count]), "nodes join")

    @contextmanager
    def replacing(self, name: str) -> Iterator[None]:
        """Note how long a step takes, and the longest stall of all trainers during it."""
        began = time.monotonic()
        yield
        self.load.wait_for(2 * self._trainers)
        ended = time.monotonic()
        row = {"seconds": ended - began, "stall_seconds": self.load.longest_stall(began, ended)}
        self.rows[name] = {key: round(value, 2) for key, value in row.items()}
        print(f"{name:12} {self.rows[name]}", *self.load.failures, flush=True)
        self.probe.look(name)

    def upgrade(self) -> None:
        """Replace everything by the next version."""
        with self.replacing("migrations"):
            self.system.manage("backup", str(self._folder / "backup"))
            self.system.code = self.next
            self.system.manage("setup")
            # It becomes a row of the former projector in the migrated database.
            self._start_nodes(NODES)
        self._replace_parts(*PARTS)
        self._replace_nodes()

    def roll_back(self) -> None:
        """Replace everything by an earlier version, which finds the database of the later one."""
        self._start_nodes(NODES)
        self._replace_nodes()
        self._replace_parts(*reversed(PARTS))

    def _replace_parts(self, *names: str) -> None:
        system = self.system
        for name in names:
            with self.replacing(name):
                loops = {"standby": system.standby, "leader": system.leader}
                part = loops[name]() if name in loops else system[name]
                if part.code is self.next:  # the other loop leads now
                    part = system["loop-1" if part.name == "loop-2" else "loop-2"]
                part.end()
                part.code = self.next
                part.start()
                system.wait_until_whole()

    def _replace_nodes(self) -> None:
        self.nodes.replace(self.system, self.load, self.next, self.replacing)

    def count(self) -> dict[str, Any]:
        """End the trainers, and count in the journal, on disk, in the rows and among the processes."""
        load = self.load
        self.probe.look(LAST)
        load.stop()
        finishes = self._finishes()
        submitted = self._submitted()
        until(lambda: load.accepted <= self._ended_rows(), "rows are written")
        return {
            "accepted": len(load.accepted),
            "submitted_by_all": len(submitted),
            "lost": sum(not finishes[each] for each in submitted | load.accepted),
            "ended_twice": sum(count > 1 for count in finishes.values()),
            "ran_twice": len(load.ran_twice()),
            "completed_without_running": load.never_ran(),
            "not_completed": sum(each != "completed" for each in load.outcomes.values()),
            "ended_otherwise": self._ended_otherwise(),
            "strayed_trajectories": len(load.moved - self._moved()),
            "moved_trajectories": len(load.moved),
            "errors_of_the_sdk": len(load.failures),
            "uses_tried": self.probe.tried,
            "uses_failed": sum(map(len, self.probe.failures.values())),
            "failures_of_uses": self.probe.failures,
            "uses_that_the_former_code_has_not": self.probe.new,
            "processes_of_the_former_code": len(self._processes_of(self.former)),
            "replays_as_it_was_decided": self._replays(),
            "longest_stall_seconds": max(each["stall_seconds"] for each in self.rows.values()),
            "slowest_action_seconds": round(max(load.took), 2),
            "act": quantiles(load.took),
            "steps": self.rows,
        }

    def _ended_otherwise(self) -> list[str]:
        """Say of each action that did not complete what the API says of it."""
        ended = [each for each, outcome in self.load.outcomes.items() if outcome != "completed"]
        with Client(self.system.address.url, self.system.token) as client:
            views = [client.get(each) for each in ended]
        return [f"{each.id}: {each.outcome}: {each.detail}" for each in views]

    def _submitted(self) -> set[str]:
        """Return all actions in the journal, those of the probe, too."""
        with self.system.client() as client:
            entries = [entry for _, entry in Journal(client, self.system.keys).after(START)]
        events = (each for entry in entries for each in entry.events)
        return {each.action.id for each in events if isinstance(each, ActionSubmitted)}

    def _finishes(self) -> Counter[str]:
        """Return how often each action ended in the journal, of which the versions wrote parts."""
        return Counter(each.action_id for each in self._decisions() if isinstance(each, Finish))

    def _moved(self) -> set[str]:
        """Return the names of trajectories whose environments the scheduler moved."""
        ends = (each for each in self._decisions() if isinstance(each, EndMove))
        return {each.trajectory.partition("/")[2] for each in ends if each.has_moved}

    def _decisions(self) -> list[Decision]:
        with self.system.client() as client:
            entries = [entry for _, entry in Journal(client, self.system.keys).after(START)]
        return [each for entry in entries for each in entry.decisions]

    def _replays(self) -> bool:
        """Return whether the present core decides as the journal has it, also in entries of the other version."""
        try:
            self.audit.replay()
        except AssertionError as error:
            print(error)
            return False
        return True

    def _ended_rows(self) -> set[str]:
        return {each for each, outcome in self.system.outcomes_in_rows().items() if outcome}

    def _processes_of(self, code: CodeTree) -> list[int]:
        """Return the parts that an interpreter runs, except node workers below which the code was replaced."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or [""]
            is_part = any(each.startswith("tangram_web") for each in words)
            of_group = any(each.startswith(f"{GROUP}-") for each in words)
            if words[0] == code.python and is_part and not (of_group and self._in_place):
                found.append(process.pid)
        return found

    def end(self) -> None:
        """End the nodes of the group, then everything."""
        try:
            if self.system["web"].alive and self.system["projector"].alive:
                self.nodes.end(self.system)
        finally:
            self.system.stop()

    def _answers(self) -> bool:
        try:
            return bool(self.system.status())
        except OSError:
            return False

    def _ready(self) -> list[str]:
        nodes = self.system.status()["nodes"]
        return [each["name"] for each in nodes if each["state"] == "ready"]


def codes_of(options: argparse.Namespace, folder: Path) -> tuple[CodeTree, CodeTree]:
    """Return the former and the next code, each with an interpreter of its own. Raises NoSuchCode."""
    present = CodeTree(PRESENT.folder, interpreter(folder / "present", PRESENT.folder))
    if not options.earlier:
        return CodeTree(PRESENT.folder, interpreter(folder / "former", PRESENT.folder)), present
    earlier = code_of(options.earlier, folder / "earlier")
    return (present, earlier) if options.rollback else (earlier, present)


def variant_of(options: argparse.Namespace) -> str:
    """Return what tells the results of drills apart."""
    engine = "" if options.engine == "processes" else options.engine
    earlier = "" if not options.earlier else "rollback" if options.rollback else "from"
    rows = "postgres" if options.postgres else ""
    return "-".join(filter(None, [earlier, Path(options.earlier).name, engine, rows]))


def main() -> int:
    """Replace, count, print, store; return 1 when a target is missed."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--trainers", type=int, default=16)
    parser.add_argument("--from", dest="earlier", default="", help="revision, or another checkout")
    parser.add_argument("--rollback", action="store_true", help="from the present to that one")
    parser.add_argument("--engine", choices=ENGINES, default="processes")
    parser.add_argument("--postgres", action="store_true", help="rows in PostgreSQL")
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    if options.rollback and not options.earlier:
        parser.error("--rollback needs --from: the revision to return to")
    with tempfile.TemporaryDirectory(prefix="tangram-upgrade-") as directory:
        try:
            result = play(options, Path(directory))
        except NoSuchCode as error:
            parser.error(str(error))
    print(result)
    if options.store:
        name_paths()
        print("stored in", store("upgrade", result, variant_of(options)))
    missed = [each for each in TARGETS if result[each]]
    print("missed:" if missed else "all targets are met", *missed)
    return 1 if missed else 0


@contextmanager
def _postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().create()
    try:
        yield server
    finally:
        server.stop()


def play(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return what one drill counted."""
    codes = codes_of(options, folder)
    with (
        cluster_of(options.engine, folder, codes[0]) as nodes,
        _postgres() if options.postgres else nullcontext() as postgres,
    ):
        drill = Drill(folder, options.trainers, nodes, codes, postgres)
        try:
            drill.begin()
            (drill.roll_back if options.rollback else drill.upgrade)()
            return drill.count()
        finally:
            drill.end()


if __name__ == "__main__":
    sys.exit(main())
