"""The script `./tangram`: where it works, what it installs, what it starts.

Each test calls it on a PATH of its own, on which every program that it might install is a stand-in.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

TOOLS = (
    "cat",
    "cksum",
    "cmp",
    "cp",
    "date",
    "dirname",
    "grep",
    "id",
    "mkdir",
    "readlink",
    "rm",
    "sh",
    "tail",
    "timeout",
)
#: Programs of Debian packages that tests use.
PROGRAMS = (
    "bwrap cc chromium curl dockerd ip mmdebstrap munged prometheus redis-server sbatch slurmctld slurmd"
    " ssh sshd strace systemd-analyze"
).split()


def a_command(path: Path, body: str) -> None:
    """Write an executable script."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a fresh clone, in a folder whose name has a space."""
    folder = tmp_path / "a clone"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / "tangram", folder)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci")
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    return folder


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """Return a PATH with the few tools that the script uses, and without Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


@pytest.fixture
def apt_calls(bin_folder: Path, tmp_path: Path) -> Path:
    """Return a PATH's record of the calls of its `apt-get`, for a user that is root."""
    calls = tmp_path / "apt-calls"
    a_command(bin_folder / "apt-get", f'echo "$*" >>"{calls}"')
    (bin_folder / "id").unlink()
    a_command(bin_folder / "id", "echo 0")
    return calls


@pytest.fixture
def programs(bin_folder: Path) -> Path:
    """Return the PATH, with a stand-in for each program of a Debian package."""
    for name in PROGRAMS:
        a_command(bin_folder / name, "exit 1")
    a_command(bin_folder / "find", "echo found")  # PostgreSQL and torch
    return bin_folder


def call(script: Path, *arguments: str, path: Path, cwd: str = "/", **more: str):
    """Call the script from another folder."""
    return subprocess.run(
        [script, *arguments],
        cwd=cwd,
        env={"PATH": str(path), **more},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def fingerprint(checkout: Path, lock: str) -> str:
    """Return what the script records after it installed a lock."""
    lines = '"$1/.venv/bin/python" -V; printf "%s\\n" "$1"; cksum <"$1/requirements/$2.lock"'
    command = ["sh", "-c", lines, "sh", str(checkout), lock]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def installed(checkout: Path) -> Path:
    """Return a clone with an environment whose Python prints its arguments."""
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

    called = call(checkout / "tangram", "up", path=bin_folder)

    assert called.returncode == 1
    assert "no such package" in called.stderr
    assert "pip could not install" in called.stderr
    assert not (checkout / ".venv" / ".installed-core").exists()


@pytest.mark.parametrize(
    ("arguments", "started"),
    [
        (("up", "--port", "9"), "-m|tangram_web.supervisor|--port|9|"),
        (("get", "a b"), "-m|tangram_client|get|a b|"),
        (("sim", "run", "a b"), "-m|simulator|run|a b|"),
        (("dispatch", "plan", "a b"), "-m|dispatcher|plan|a b|"),
        (("selector", "profile", "a b"), "-m|tangram_web.command|selector|profile|a b|"),
        (("test", "tests/unit", "-k", "x y"), "-m|pytest|tests/unit|-k|x y|"),
        (
            ("test", "--long", "tests/unit"),
            "-m|pytest|--tier|long|--timeout|1800|tests/unit|",
        ),
        (("test", "--quick", "-k", "x y"), "-m|pytest|--tier|quick|-k|x y|"),
    ],
    ids=[
        "up",
        "client",
        "simulator",
        "dispatcher",
        "profile",
        "tests",
        "long tests",
        "quick tests",
    ],
)
def test_verb_runs_at_once_when_all_is_installed(installed, programs, arguments, started):
    called = call(installed / "tangram", *arguments, path=programs)

    assert called.stdout.splitlines() == [started]
    assert called.returncode == 0


def test_script_can_be_called_through_a_link(installed, bin_folder, tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "tangram").symlink_to("../a clone/tangram")

    called = call(tmp_path / "links" / "tangram", "get", path=bin_folder)

    assert called.stdout == "-m|tangram_client|get|\n"


def test_changed_lock_is_installed_before_the_start(installed, bin_folder):
    with (installed / "requirements" / "core.lock").open("a") as lock:
        lock.write("extra==1.0\n")

    called = call(installed / "tangram", "up", path=bin_folder)

    assert "needs Python 3.11" in called.stderr, "it looked for a Python to install with"


def test_quick_tests_install_no_debian_package(installed, bin_folder, apt_calls):
    called = call(installed / "tangram", "test", "--quick", path=bin_folder)

    assert called.stdout == "-m|pytest|--tier|quick|-q|-n|auto|tests/unit|tests/architecture|\n"
    assert not apt_calls.exists()


def test_missing_programs_are_installed_by_root(installed, programs, apt_calls):
    (programs / "bwrap").unlink()
    (programs / "ip").unlink()

    called = call(installed / "tangram", "test", "tests/unit", path=programs)

    assert called.returncode == 0
    assert (
        apt_calls.read_text()
        .splitlines()[-1]
        .endswith("install --no-install-recommends bubblewrap iproute2")
    )


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)], ids=["here", "on CI"])
def test_missing_programs_are_named_to_users_and_fail_ci(installed, programs, ci, code):
    (programs / "bwrap").unlink()

    called = call(installed / "tangram", "test", "tests/unit", path=programs, CI=ci)

    assert "As root: apt-get install bubblewrap" in called.stderr
    assert called.returncode == code


def test_failed_check_is_shown_and_passed_to_the_tests(installed, programs):
    for tool in ("ruff", "mypy", "lint-imports"):
        a_command(
            installed / ".venv" / "bin" / tool, f"[ {tool} != mypy ] || {{ echo oops; exit 1; }}"
        )
    a_command(
        installed / ".venv" / "bin" / "python",
        '[ "$1" = -V ] && { echo "Python 3.11.2"; exit; }; echo "$2: $TANGRAM_FAILED_CHECKS"',
    )

    called = call(installed / "tangram", "test", path=programs)

    assert "mypy            FAILED\noops" in called.stderr
    assert called.stdout.splitlines()[-1] == "pytest: mypy"


def test_a_whole_run_covers_every_folder_once(installed, programs):
    called = call(installed / "tangram", "test", "--long", path=programs)

    shared, *others = [line for line in called.stdout.splitlines() if line.startswith("-m|pytest|")]
    ignored = [word.removeprefix("--ignore=") for word in shared.split("|") if "--ignore" in word]
    run = [word for line in others for word in line.split("|") if word.startswith("tests/")]
    folders = [word for word in run if (ROOT / word).is_dir()]
    assert sorted(folders) == sorted(ignored)
    # A file that takes long starts before its folder.
    first = set(run) - set(folders)
    assert all((ROOT / file).is_file() and file.startswith(tuple(folders)) for file in first)
    assert all("--tier|long|" in line for line in (shared, *others))


def test_a_whole_run_says_how_long_each_part_took_and_which_failed(installed, programs):
    a_command(
        installed / ".venv" / "bin" / "python",
        '[ "$1" = -V ] && { echo "Python 3.11.2"; exit; }; case "$*" in *tests/acceptance*faults*doors | *action_gate) exit 1 ;; esac',
    )

    called = call(installed / "tangram", "test", path=programs)

    *_, times, failed = called.stderr.splitlines()
    parts = [part.rsplit(" ", 2)[0] for part in times.removeprefix("time: ").split(", ")]
    assert parts == [
        "checks",
        "tests that share the cores",
        "preparation",
        "CPU time of an action",
        "tests of an installation",
        "tests of hostile programs",
    ]
    assert failed == "tangram: failed (above): CPU time of an action, tests of an installation"
    assert called.returncode == 1


@pytest.mark.parametrize("alone", [0, 1])
def test_failed_tests_that_may_be_repeated_decide_alone(installed, programs, alone):
    a_command(
        installed / ".venv" / "bin" / "python",
        f"""[ "$1" = -V ] && {{ echo "Python 3.11.2"; exit; }}
case "$*" in
    *@*) exit {alone} ;;
    *" tests/faults "*) echo "tests/faults/test_a.py::test[x y]" >"$4"; exit 1 ;;
esac""",
    )

    called = call(installed / "tangram", "test", path=programs)

    last = {
        0: "failed beside other tests and passed alone: tests/faults/test_a.py::test[x y]",
        1: "tangram: failed (above): tests of an installation",
    }
    assert called.stderr.splitlines()[-1] == last[alone]
    assert called.returncode == alone


def test_ci_runs_the_tests_and_returns_their_exit_code(checkout, bin_folder):
    a_command(checkout / "tangram", 'echo "$* CI=$CI"; exit 3')
    for tool in ("bash", "env"):
        (bin_folder / tool).symlink_to(str(shutil.which(tool)))

    called = call(checkout / ".ci" / "run", path=bin_folder)

    assert called.stdout == "test CI=true\n"
    assert called.returncode == 3
