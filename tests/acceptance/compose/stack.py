"""The shipped docker-compose.yml as an operator has it: a folder with .env, and the program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.acceptance.compose import stand_ins
from tests.architecture.tree import ROOT
from tests.docker_engine import DockerEngine

#: A machine under load starts a dozen processes of Python in minutes.
WITHIN_SECONDS: Final = 600.0
SECRETS: Final = {
    "TANGRAM_SECRET_KEY": "0123456789abcdef" * 4,
    "POSTGRES_PASSWORD": "a-word-of-postgres",
    "REDIS_PASSWORD": "a-word-of-redis",
}


class Answer(NamedTuple):
    """The result of one request; status 0 when the server was not reached."""

    status: int
    body: Any


class Stack:
    """One Tangram on compose, in an engine of its own."""

    def __init__(self, engine: DockerEngine, folder: Path, project: str = "tangram") -> None:
        self.engine = engine
        self.folder = folder
        self.project = project
        #: More than one when something is added to what is shipped.
        self.files = [ROOT / "docker-compose.yml"]
        self.token = ""
        self.configure()

    def configure(self, **more: str) -> None:
        """Write .env."""
        lines = [f"{name}={value}\n" for name, value in {**SECRETS, **more}.items()]
        (self.folder / ".env").write_text("".join(lines))

    def compose(self, *words: str) -> str:
        """Run a command of compose; return what it printed."""
        files = [word for file in self.files for word in ("--file", str(file))]
        command = [
            str(stand_ins.compose()), "--project-name", self.project,
            "--env-file", str(self.folder / ".env"), "--project-directory", str(ROOT), "--ansi", "never", *files,
        ]  # fmt: skip
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "DOCKER_HOST": self.engine.host,
        }
        done = subprocess.run(
            [*command, *words], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=WITHIN_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}\n{self._logs()}"
        return done.stdout

    def up(self, *words: str) -> None:
        """Start everything as the head of the file describes, and log in."""
        self.compose("up", "--build", "--detach", "--wait", *words)
        self.token = self.set_up()["token"]

    def set_up(self) -> Any:
        """Ask for a token and a link."""
        said = self.compose("run", "--rm", "--no-TTY", "setup")
        return json.loads(said.splitlines()[-1])

    def ask(self, method: str, path: str, body: object = None, port: int = 8000) -> Answer:
        """Send a request to the published port."""
        assert self.engine.process is not None
        command = [
            "nsenter", f"--net=/proc/{self.engine.process.pid}/ns/net",
            "curl", "--silent", "--max-time", "180", "--write-out", "\n%{http_code}",
            "--request", method, f"http://localhost:{port}{path}",
            "--header", f"Authorization: Bearer {self.token}",
        ]  # fmt: skip
        if body is not None:
            command += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text, _, status = done.stdout.rpartition("\n")
        return Answer(int(status or 0), json.loads(text) if text.startswith(("{", "[")) else text)

    def containers(self) -> dict[str, Any]:
        """Return the engine's record of each container, by its name without the project's."""
        own = {"label": f"com.docker.compose.project={self.project}"}
        with self.engine.client() as client:
            there = client.containers(all=True, filters=own)
            found = [client.inspect_container(each["Id"]) for each in there]
        return {each["Name"].removeprefix(f"/{self.project}-"): each for each in found}

    def users(self) -> dict[str, set[int]]:
        """Return the users of running processes, by container."""
        with self.engine.client() as client:
            return {
                name: {int(row[0]) for row in client.top(facts["Id"], "-eo uid,pid")["Processes"]}
                for name, facts in self.containers().items()
                if facts["State"]["Running"]
            }

    def health(self) -> Counter[str]:
        """Return how many containers are how well; what has ended is left out."""
        return Counter(
            facts["State"].get("Health", {}).get("Status", "unknown")
            for facts in self.containers().values()
            if facts["State"]["Running"]
        )

    def crash(self, name: str) -> None:
        """Kill a container's first process. (After `docker kill` no policy would restart it.)"""
        os.kill(self.containers()[name]["State"]["Pid"], signal.SIGKILL)

    def gateway(self) -> str:
        """Return an address at which all networks of the engine reach what is published there."""
        with self.engine.client() as client:
            subnet = client.inspect_network("bridge")["IPAM"]["Config"][0]["Subnet"]
        return str(ip_network(subnet)[1])

    def volumes(self) -> set[str]:
        """Return the names of all volumes."""
        with self.engine.client() as client:
            return {each["Name"] for each in client.volumes()["Volumes"] or ()}

    def exit_codes(self, since: float) -> dict[str, str]:
        """Return how containers have ended since then, by name."""
        with self.engine.client() as client:
            events = client.events(
                since=int(since), until=int(time.time()) + 1, decode=True,
                filters={"type": "container", "event": "die"},
            )  # fmt: skip
            facts = [event["Actor"]["Attributes"] for event in events]
        return {each["name"].removeprefix(f"{self.project}-"): each["exitCode"] for each in facts}

    def _logs(self) -> str:
        texts = []
        with self.engine.client() as client:
            for each in client.containers(all=True):
                said = client.logs(each["Id"], tail=30).decode(errors="replace")
                texts.append(f"--- {each['Names']} {each['Status']}\n{said}")
        return "\n".join(texts)


def until(holds: Callable[[], bool], seconds: float = WITHIN_SECONDS) -> None:
    """Return once something is so."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"still not so after {seconds:g} s: {holds}"
        time.sleep(0.2)
