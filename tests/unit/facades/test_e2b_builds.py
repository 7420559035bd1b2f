"""The steps of a template become commands with the variables and the directory before them."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from domain.errors import InvalidRequest
from facades.e2b.builds import Step, plan_of

#: What a command does first, which a test outside of an environment leaves out.
FIRST_DIRECTORY = plan_of([Step("RUN", [""])], {}).commands[0].command


def test_each_command_has_the_variables_and_directory_of_the_steps_before():
    steps = [
        Step("RUN", ["first"]),
        Step("ENV", ["A", "1", "B", "2"]),
        Step("USER", ["root"]),
        Step("WORKDIR", ["/my app"]),
        Step("RUN", ["second && third", "root"]),
    ]

    plan = plan_of(steps, {"A": "0"})

    first, second = plan.commands
    assert first.command.startswith("mkdir -p ~user".replace("~", "/home/"))
    assert first.command.endswith("; first")
    assert first.envs == {"A": "0"}
    assert second.command == "mkdir -p '/my app' && cd '/my app' && second && third"
    assert second.envs == {"A": "1", "B": "2"}
    assert plan.envs == {"A": "1", "B": "2"}


@pytest.mark.parametrize("step", [Step("COPY", ["a", "b"]), Step("COPY", ["a"], "5f"), Step("ADD")])
def test_a_step_that_cannot_be_run_is_refused(step: Step):
    with pytest.raises(InvalidRequest, match=r"filesHash|ADD"):
        plan_of([step], {})


@pytest.mark.parametrize(
    ("source", "target", "mode", "found"),
    [
        ("one/a.txt", "out.txt", "", {"out.txt": 0o644}),
        ("one/a.txt", "new/", "600", {"new/a.txt": 0o600}),
        ("one/a.txt", "there", "", {"there/a.txt": 0o644}),
        ("one/*.txt", "all", "", {"all/a.txt": 0o644, "all/b c.txt": 0o644}),
        ("one", "tree", "", {"tree/a.txt": 0o644, "tree/b c.txt": 0o644, "tree/x.sh": 0o755}),
        (
            ".",
            "every",
            "",
            {"every/one/a.txt": 0o644, "every/one/b c.txt": 0o644, "every/one/x.sh": 0o755},
        ),
    ],
)
def test_files_of_a_copy_step_are_put_in_their_place(
    tmp_path: Path, source: str, target: str, mode: str, found: dict[str, int]
):
    (tmp_path / "there").mkdir()
    uploaded = tmp_path / "uploaded" / "one"
    uploaded.mkdir(parents=True)
    for name, bits in (("a.txt", 0o644), ("b c.txt", 0o644), ("x.sh", 0o755)):
        (uploaded / name).write_text(name)
        (uploaded / name).chmod(bits)

    (copying,) = plan_of([Step("COPY", [source, target, "user", mode], "5f")], {}).commands
    script = copying.command.replace("/workspace/.tangram-copy", str(uploaded.parent))
    script = script.replace(FIRST_DIRECTORY, "")
    subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, check=True)

    assert copying.files == "5f"
    made = {
        str(each.relative_to(tmp_path)): stat.S_IMODE(each.stat().st_mode)
        for each in tmp_path.rglob("*")
        if each.is_file()
    }
    assert made == found, "the uploaded files are moved"


def test_a_copy_step_without_its_file_fails(tmp_path: Path):
    (copying,) = plan_of([Step("COPY", ["none*", "x"], "5f")], {}).commands
    script = copying.command.replace("/workspace/.tangram-copy", str(tmp_path))
    done = subprocess.run(
        ["/bin/sh", "-c", script.replace(FIRST_DIRECTORY, "")], capture_output=True
    )

    assert (done.returncode, done.stderr) == (1, b"there is no none*\n")
