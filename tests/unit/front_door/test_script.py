"""The front door works from anywhere, and says what it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return the front door of a fresh clone, in a folder whose name has a space."""
    folder = tmp_path / "a clone"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / "tangram", folder)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci")
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    return folder


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """Return a PATH of its own with the few tools that the script uses."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("dirname", "readlink", "cat", "cksum", "grep", "tail", "id", "sh"):
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def a_command(path: Path, body: str) -> None:
    """Write an executable script."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def call(script: Path, *arguments: str, path: Path | None = None, cwd: str = "/", **more: str):
    """Run the script from another folder."""
    environment = {key: value for key, value in os.environ.items() if key != "TANGRAM_VENV"}
    environment |= {"PATH": str(path)} if path else {}
    return subprocess.run(
        [script, *arguments],
        cwd=cwd,
        env=environment | more,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def fingerprint(checkout: Path, lock: str) -> str:
    """Return what the script notes down after it installed a lock."""
    lines = '"$1/.venv/bin/python" -V; printf "%s\\n" "$1"; cksum <"$1/requirements/$2.lock"'
    command = ["sh", "-c", lines, "sh", str(checkout), lock]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def installed(checkout: Path) -> Path:
    """Return a checkout whose environment is there: its Python prints what it is asked to do."""
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    a_command(python, '[ "$1" = -V ] && { echo "Python 3.11.2"; exit; }; printf "%s|" "$@"; echo')
    for lock in ("core", "test"):
        (checkout / ".venv" / f".installed-{lock}").write_text(fingerprint(checkout, lock))
    models = checkout / ".venv" / "transformers"
    models.mkdir()
    shutil.copy(checkout / "requirements" / "transformers.lock", models / "installed")
    return checkout


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_script_is_plain_posix_shell(shell, program):
    subprocess.run([program(shell), "-n", ROOT / "tangram"], check=True)


@pytest.mark.parametrize("arguments", [(), ("help",), ("-h",)], ids=["nothing", "help", "-h"])
def test_help_needs_no_python(checkout, bin_folder, arguments):
    called = call(checkout / "tangram", *arguments, path=bin_folder)

    assert called.returncode == 0
    assert called.stdout.startswith("usage: ./tangram VERB")


def test_python_that_is_too_old_is_named_with_the_cure(checkout, bin_folder):
    a_command(bin_folder / "python3", '[ "$1" = -V ] && { echo "Python 3.9.2"; exit; }; exit 1')

    called = call(checkout / "tangram", "up", path=bin_folder)

    assert called.returncode == 1
    assert "needs Python 3.11 or newer, found Python 3.9.2" in called.stderr
    assert "TANGRAM_PYTHON=" in called.stderr


def test_machine_without_python_gets_the_cure(checkout, bin_folder):
    called = call(checkout / "tangram", "up", path=bin_folder)

    assert called.returncode == 1
    assert "found none" in called.stderr


def test_python_without_venv_is_named_with_the_package_to_install(checkout, bin_folder):
    a_command(bin_folder / "python3", 'case "$2" in *ensurepip*) exit 1 ;; esac')

    called = call(checkout / "tangram", "up", path=bin_folder)

    assert called.returncode == 1
    assert "apt-get install python3-venv" in called.stderr


def test_failed_install_shows_the_end_of_pips_output(checkout, bin_folder):
    python = bin_folder / "python3"
    a_command(
        python,
        'case "$*" in *"pip install"*) echo "no such package"; exit 7 ;; '
        f'*"venv --clear"*) mkdir -p "$4/bin"; cp "{python}" "$4/bin/python" ;; esac',
    )
    for tool in ("mkdir", "cp"):
        (bin_folder / tool).symlink_to(str(shutil.which(tool)))

    called = call(checkout / "tangram", "up", path=bin_folder)

    assert called.returncode == 1
    assert "no such package" in called.stderr
    assert "pip could not install" in called.stderr
    assert not (checkout / ".venv" / ".installed-core").exists()


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("up", "--port", "9"), "-m|tangram_web.supervisor|--port|9|"),
        (("get", "a b"), "-m|tangram_client|get|a b|"),
        (("sim", "run", "a b"), "-m|simulator|run|a b|"),
        (("test", "tests/unit", "-k", "x y"), "-m|pytest|tests/unit|-k|x y|"),
    ],
    ids=["up", "the client", "the simulator", "tests"],
)
def test_verb_runs_at_once_when_all_is_installed(installed, arguments, asked):
    called = call(installed / "tangram", *arguments)

    assert called.stdout.splitlines() == [asked]
    assert called.returncode == 0


def test_script_can_be_called_through_a_link(installed, tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "tangram").symlink_to("../a clone/tangram")

    called = call(tmp_path / "links" / "tangram", "get")

    assert called.stdout == "-m|tangram_client|get|\n"


def test_changed_lock_is_installed_before_the_start(installed, bin_folder):
    with (installed / "requirements" / "core.lock").open("a") as lock:
        lock.write("extra==1.0\n")

    called = call(installed / "tangram", "up", path=bin_folder)

    assert "needs Python 3.11" in called.stderr, "it looked for a Python to install with"


def test_failed_check_is_shown_and_handed_to_the_tests(installed):
    for tool in ("ruff", "mypy", "lint-imports"):
        a_command(
            installed / ".venv" / "bin" / tool, f"[ {tool} != mypy ] || {{ echo oops; exit 1; }}"
        )
    a_command(
        installed / ".venv" / "bin" / "python",
        '[ "$1" = -V ] && { echo "Python 3.11.2"; exit; }; echo "$2: $TANGRAM_FAILED_CHECKS"',
    )

    called = call(installed / "tangram", "test")

    assert "mypy            FAILED\noops" in called.stderr
    assert called.stdout.splitlines()[-1] == "pytest: mypy"


def test_ci_runs_the_very_same_command_and_hands_on_its_exit_code(checkout):
    a_command(checkout / "tangram", 'echo "$* CI=$CI"; exit 3')

    called = call(checkout / ".ci" / "run")

    assert called.stdout == "test CI=true\n"
    assert called.returncode == 3
