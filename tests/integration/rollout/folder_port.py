"""Port whose environments are folders and whose actions are processes of this machine, without a sandbox.

For what handlers do with git, shells and pytest. A node's rules for rewards, its sandbox and its cores are tested with a node.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from domain.errors import NotFound
from domain.rollouts import Rollout
from rollout.testing.fake_port import FakePort


class FolderPort(FakePort):
    """A fake port with real files and commands."""

    def __init__(self, folder: Path) -> None:
        super().__init__(self._run)
        self.folder = folder

    def place(self, name: str) -> Path:
        """Return the workspace of a trajectory."""
        return self.folder / name

    async def open(
        self, rollout: Rollout, name: str, environment: Mapping[str, Any] | None
    ) -> None:
        """Open a trajectory."""
        await super().open(rollout, name, environment)
        self.place(name).mkdir(exist_ok=True)

    async def fork(self, rollout: Rollout, source: str, names: Sequence[str]) -> None:
        """Fork a trajectory."""
        await super().fork(rollout, source, names)
        for name in names:
            if not self.place(name).exists():
                shutil.copytree(self.place(source), self.place(name), symlinks=True)

    async def put(self, rollout: Rollout, name: str, path: str, content: bytes) -> None:
        """Write a file."""
        _write(self.place(name) / path, content)

    async def get(self, rollout: Rollout, name: str, path: str) -> bytes:
        """Read a file."""
        try:
            return (self.place(name) / path).read_bytes()
        except OSError as error:
            raise NotFound(str(error)) from None

    async def _run(self, members: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        work, rule = members["exec"], members.get("reward") or {}
        here = self.place(members["trajectory"])
        for path, text in rule.get("files", {}).items():
            _write(here / path, text.encode())
        words = [word.replace("{units}", "2") for word in work["command"]]
        if work.get("session"):
            words = ["bash", "-c", *words]
        process = await asyncio.create_subprocess_exec(
            *words, cwd=here / (work.get("cwd") or ""), stdin=-1, stdout=-1, stderr=-1,
            env={"PATH": os.environ["PATH"], "HOME": str(here), "LANG": "C.UTF-8", **work.get("env", {})},
        )  # fmt: skip
        out, errors = await process.communicate((work.get("stdin") or "").encode())
        result: dict[str, Any] = {
            "exit_code": process.returncode, "stdout": out.decode(errors="replace"),
            "stderr": errors.decode(errors="replace"), "reward": _reward(rule, out),
        }  # fmt: skip
        return "completed", result


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def _reward(rule: Mapping[str, Any], output: bytes) -> float | None:
    """Return the number that a rule reads from the last line of output."""
    try:
        value = json.loads(output.decode().splitlines()[-1])[rule["path"]]
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return float(value) if value is not None else None
