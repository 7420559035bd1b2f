"""A running Tangram, and unmodified clients of other protocols, each in an environment of its own.

A test runs a script under the Python of a client and reads what the script prints:

    def test_a_sandbox_runs_a_command(tangram, sdk, run):
        url = tangram.access["url"] + "/e2b"
        done = run(sdk("e2b"), SCRIPT, E2B_API_URL=url, E2B_API_KEY=tangram.access["token"])
        assert done.stdout == "hello\\n"

Each door has one test without a mark; whole suites of a client have the mark ``long``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
from tests.doors import environments
from tests.not_run import NotRun
from tests.small_image import docker_tar, root_tar

#: Longest test: it may be the first that needs an environment, which is installed then.
_SECONDS = 1800


class ScriptRunner(Protocol):
    """What runs a script under a client's Python, or under Node with a client's packages."""

    def __call__(
        self,
        program: Path,
        script: str | Path,
        *arguments: str,
        seconds: float = 300,
        check: bool = True,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Return its output; with ``check`` another exit code than 0 fails the test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here time to install a client."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_SECONDS))


@pytest.fixture(scope="session")
def tangram(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tangram]:
    """A Tangram without demo load, for all tests here; ``tangram.access``: its url and a token."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANGRAM_NODE_GPUS", "2")  # declared: nothing looks whether they exist
        patch.setenv("TANGRAM_TOKENIZERS", str(ROOT / "examples" / "rollouts"))
        running = Tangram(tmp_path_factory.mktemp("doors") / "home", "--no-demo")
    running.wait_until_ready()
    yield running
    assert running.end() == 0


@pytest.fixture(scope="session")
def sdk() -> Callable[[str], Path]:
    """Return the Python of the client whose pins are ``pins/NAME.txt``."""
    return lambda name: _or_not_run(environments.python_of, name)


@pytest.fixture(scope="session")
def node_sdk() -> Callable[[str], Path]:
    """Return the folder of Node packages whose pins are ``pins/NAME.json``."""
    return lambda name: _or_not_run(environments.node_packages_of, name)


@pytest.fixture
def run(tangram: Tangram, tmp_path: Path) -> ScriptRunner:
    """Run scripts in a folder of their own, with ``TANGRAM_URL`` and ``TANGRAM_TOKEN``."""

    def begin(
        program: Path,
        script: str | Path,
        *arguments: str,
        seconds: float = 300,
        check: bool = True,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        command = _command(program, script, tmp_path)
        done = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=_environment(tangram, tmp_path) | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert not check or done.returncode == 0, (
            f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done

    return begin


@pytest.fixture
def store_image(tangram: Tangram, tmp_path: Path) -> Callable[[str], None]:
    """Store a small image with a shell, also as bash, on the nodes under a name."""

    def store(name: str) -> None:
        archive = tmp_path / "saved.tar"
        archive.write_bytes(docker_tar(root_tar(("./bin/bash", tarfile.SYMTYPE, 0o777, 0, "sh"))))
        subprocess.run(
            [sys.executable, "-m", "tangram_client", "image", "import", name, str(archive)],
            cwd=ROOT,
            env={**os.environ, "TANGRAM_HOME": str(tangram.home)},
            check=True,
        )

    return store


def _or_not_run(find: Callable[[str], Path], name: str) -> Path:
    try:
        return find(name)
    except environments.MissingProgram as missing:
        raise NotRun(str(missing)) from None


def _command(program: Path, script: str | Path, folder: Path) -> list[str]:
    """Return the command; a text is stored as a file, beside the packages that Node looks for there."""
    node = program.is_dir()
    if isinstance(script, str):
        path = folder / ("script.mjs" if node else "script.py")
        path.write_text(script)
        script = path
    if not node:
        return [str(program), str(script)]
    modules = script.parent / "node_modules"
    if not modules.exists():
        modules.symlink_to(program / "node_modules")
    return ["node", str(script)]


def _environment(tangram: Tangram, folder: Path) -> dict[str, str]:
    """Return the environment of a trainer: nothing of the test run, no settings of this machine's user."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    access = tangram.access
    return {
        **kept,
        "HOME": str(folder),
        "TANGRAM_URL": access["url"],
        "TANGRAM_TOKEN": access["token"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
