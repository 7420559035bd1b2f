"""The systemd units are valid, run as a user of their own, and start what `up` starts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def values(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def test_every_part_has_a_unit() -> None:
    assert [unit.name for unit in UNITS] == [
        "tangram-access.service",
        "tangram-jobs.service",
        "tangram-loop.service",
        "tangram-node@.service",
        "tangram-projector.service",
        "tangram-rollout.service",
        "tangram-web.service",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_restarts_what_dies_and_is_not_root(unit: Path) -> None:
    assert values(unit, "Restart") == ["always"]
    # The keeper of node access has an account and an address of Redis that no other part has.
    own = unit.name == "tangram-access.service"
    assert values(unit, "User") == ["tangram-access" if own else "tangram"]
    assert values(unit, "NoNewPrivileges") == ["yes"]
    file = "access" if own else "tangram"
    assert values(unit, "EnvironmentFile") == [f"/etc/tangram/{file}.env"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_all_but_the_node_have_a_lower_weight_than_actions(unit: Path) -> None:
    weights = [] if unit.name == "tangram-node@.service" else ["25"]
    assert values(unit, "CPUWeight") == weights


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_worker_has_the_queue_of_its_role(unit: Path) -> None:
    role = re.search(r"TANGRAM_ROLE=(\w+)", unit.read_text())
    if role is not None:
        assert f"-Q {role[1]} " in values(unit, "ExecStart")[0]


def test_the_web_unit_ends_before_systemd_kills_it() -> None:
    """Streams and waiting requests have no end of their own: the server must give them up."""
    unit = next(unit for unit in UNITS if unit.name == "tangram-web.service")
    patience = re.search(r"--timeout-graceful-shutdown (\d+)", values(unit, "ExecStart")[0])
    assert patience is not None
    assert int(patience[1]) < int(values(unit, "TimeoutStopSec")[0])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    here = unit.read_text().replace("/opt/tangram/.venv/bin/python", sys.executable)
    here = here.replace("/opt/tangram", str(ROOT))
    copy = tmp_path / unit.name.replace("@", "@one")
    copy.write_text(here)
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if unit.stem.split("@")[0] in line]
    assert done.returncode == 0, done.stderr
    assert said == []
