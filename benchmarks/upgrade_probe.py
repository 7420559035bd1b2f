"""Uses of a mixture of two versions beside its actions: each asks other parts, and each is tried at every web process.

Files, forks and snapshots go from a web process to the door of a node; a burst of submissions waits for the loop outside its
inbox; a drain and a token are rows of the web process in a database that is migrated before it is replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from tangram_client import Client, exec_action, noop_action
from tangram_client._calls import apply_config, create_token
from tests.faults.system import System

#: More than the messages of one project that the inbox takes (`scheduler.runtime.redis.lua_scripts`).
BURST: Final = 600
#: Before the first part is replaced, and after the last one.
FIRST: Final = "former"
LAST: Final = "next"
#: An action that needs longer waits for a part that does not see it.
PATIENCE_SECONDS: Final = 60.0
_LARGE: Final = 200_000
_TASK: Final = "probe"


class MixtureProbe:
    """Tries each use; counts what was tried and keeps what failed.

    What fails with the former code alone is new in the next: it is tried again once all parts have that.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self.tried = 0
        #: Step → what failed in the mixture after it.
        self.failures: dict[str, list[str]] = {}
        #: Use → how it failed with the former code alone.
        self.new: dict[str, str] = {}
        self._round = 0

    def look(self, step: str) -> None:
        """Try all uses of the mixture after a step: ``FIRST`` and ``LAST`` are no mixtures."""
        uses: tuple[Callable[[Client, str], None], ...] = (
            _files, _fork, _snapshot, _large_bodies, _cancel, _burst,
        )  # fmt: skip
        for address in self._system.addresses:
            self._round += 1
            with Client(address.url, self._system.token) as client:
                for use in uses:
                    self._try(step, use, client, f"probe-{self._round}")
            with Client(address.url, self._system.admin) as admin:
                for of_admin in (_drain, _token):
                    self._try(step, of_admin, admin, f"probe-{self._round}")

    def _try(
        self, step: str, use: Callable[[Client, str], None], client: Client, name: str
    ) -> None:
        called = use.__name__.strip("_")
        if called in self.new and step not in (FIRST, LAST):
            return
        self.tried += 1
        try:
            use(client, name)
        except Exception as error:
            said = f"{called}: {type(error).__name__}: {error}"[:300]
            if step == FIRST:
                self.new[called] = said
            else:
                self.failures.setdefault(step, []).append(said)
            print("   ", said, flush=True)


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise ValueError(f"{str(found)[:80]} in place of {str(wanted)[:80]}")


def _files(client: Client, name: str) -> None:
    with client.trajectory(f"{name}-files", task=_TASK) as trajectory:
        _expect(trajectory.exec("true").outcome, "completed")
        content = b"x" * _LARGE
        trajectory.files.write("large", content)
        _expect(trajectory.files.read("large"), content)
        _expect([each.name for each in trajectory.files.list()], ["large"])
        _expect(trajectory.exec("wc -c < large").stdout.strip(), str(_LARGE))


def _fork(client: Client, name: str) -> None:
    with client.trajectory(f"{name}-fork", task=_TASK) as trajectory:
        trajectory.exec("echo forked > file")
        (fork,) = trajectory.fork(1)
        _expect(fork.exec("cat file").stdout, "forked\n")
        fork.finish()


def _snapshot(client: Client, name: str) -> None:
    with client.trajectory(f"{name}-taken", task=_TASK) as trajectory:
        trajectory.exec("echo kept > file")
        trajectory.snapshot(name)
    environment = {"snapshot": name}
    with client.trajectory(f"{name}-given", task=_TASK, environment=environment) as trajectory:
        _expect(trajectory.exec("cat file").stdout, "kept\n")
    client.snapshots.remove(name)


def _large_bodies(client: Client, name: str) -> None:
    done = client.run(exec_action(_TASK, "cat", stdin="x" * _LARGE, output={"limit_bytes": 2 * _LARGE}))  # fmt: skip
    _expect((done.outcome, done.detail, len(done.stdout)), ("completed", None, _LARGE))


def _cancel(client: Client, name: str) -> None:
    submitted = client.submit(exec_action(_TASK, "sleep 600"))
    while client.get(submitted.id).state == "queued":
        time.sleep(0.05)
    client.cancel(submitted.id)
    _expect(client.wait(submitted.id, patience_seconds=PATIENCE_SECONDS).outcome, "cancelled")


def _burst(client: Client, name: str) -> None:
    batch = client.submit_batch([noop_action(_TASK) for _ in range(BURST)])
    _expect(batch.accepted, BURST)
    # Those of a task are granted in turn; the end of the drill looks for all of them in the journal.
    _expect(
        client.wait(str(batch.items[-1].id), patience_seconds=PATIENCE_SECONDS).outcome, "completed"
    )


def _drain(client: Client, name: str) -> None:
    """Drain a node that has not joined."""
    for drained in (True, False):
        document = {"apiVersion": "tangram/v1", "kind": "Node", "metadata": {"name": "absent"}, "spec": {"drained": drained}}  # fmt: skip
        client.send(apply_config(msgspec.json.encode(document).decode()))


def _token(client: Client, name: str) -> None:
    client.send(create_token({"name": name, "scopes": ["read"]}))
