"""Actions on nodes that an engine of a cluster runs, and the processes of those that do not end."""

from __future__ import annotations

import json
import urllib.request
from typing import Any, Final

import psutil

from tests.faults.system import System

#: Seconds of a sleep that no other program asks for: by it the processes of an action are found.
MARK: Final = "86399.25"


def submit(system: System, *command: str, wait: int = 0) -> Any:
    """Submit an action of one core; return its view after at most so many seconds."""
    body = {
        "task": "t",
        "kind": "exec",
        "cost": {"cpu": 1},
        "reward": {"from": "exit_code"},
        "exec": {"command": command},
    }
    headers = {"Authorization": f"Bearer {system.token}", "Content-Type": "application/json"}
    url = f"{system.address.url}/api/v1/actions?wait={wait}"
    asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return json.load(answer)


def submit_endless(system: System) -> str:
    """Submit an action that does not end, with a process that has left its session; return its id."""
    action: str = submit(system, "sh", "-c", f"setsid sleep {MARK} & sleep {MARK}")["id"]
    return action


def view(system: System, action: str) -> Any:
    """Return what the API says of an action."""
    return system.ask("GET", f"/api/v1/actions/{action}")


def endless_processes() -> list[int]:
    """Return the processes of such actions on this machine."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if MARK in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found
