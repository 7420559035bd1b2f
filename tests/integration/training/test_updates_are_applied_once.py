"""Training with real ranks: whatever is killed, the updates are those of an undisturbed run, each applied once."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from examples.agent_training.checkpoints import AppliedUpdate, CheckpointStore
from examples.agent_training.rank_group import RankGroup
from tests.architecture.tree import ROOT
from tests.fixed_training import loop_of
from tests.tiers import by_tier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 3


def trained(run: Path, *options: str, ranks: int = 2, end: str = "") -> int:
    """Run the training in a process of its own; return its exit code."""
    command = [sys.executable, "-m", "tests.fixed_training", str(run), "--steps", str(STEPS)]
    command += ["--ranks", str(ranks), "--end", end, *options]
    return subprocess.run(command, cwd=ROOT, timeout=200, check=False).returncode


def applied(run: Path) -> Sequence[AppliedUpdate]:
    """Return the updates of a run's newest checkpoint."""
    newest = CheckpointStore(run).newest()
    assert newest is not None
    assert newest.step == STEPS
    return newest.facts.applied


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Sequence[AppliedUpdate]:
    run = tmp_path_factory.mktemp("undisturbed")
    assert trained(run) == 0
    return applied(run)


def test_updates_follow_each_other_without_gaps(undisturbed: Sequence[AppliedUpdate]) -> None:
    assert [update.step for update in undisturbed] == [1, 2, 3]
    assert all(one.after == two.before for one, two in itertools.pairwise(undisturbed))  # fmt: skip
    groups = [name for update in undisturbed for name in update.groups]
    assert len(groups) == len(set(groups)) == 6
    assert len({update.after for update in undisturbed}) == 3, "each update changes the weights"


@pytest.mark.parametrize(
    "end", by_tier(["push:2"], ["push:2"], ["commit:2", "push:2", "acknowledge:2"])
)
def test_a_trainer_that_is_killed_continues_with_the_same_updates(
    end: str, tmp_path: Path, undisturbed: Sequence[AppliedUpdate]
) -> None:
    assert trained(tmp_path, end=end) == -signal.SIGKILL
    assert trained(tmp_path) == 0

    assert applied(tmp_path) == undisturbed
    did = [json.loads(line) for line in (tmp_path / "did.jsonl").read_text().splitlines()]
    pushed = [step for what, step in did if what == "push"]
    assert sorted(set(pushed)) == [0, 1, 2, 3]
    assert pushed == sorted(pushed), "no engine gets an earlier version"
    assert {step for what, step in did if what == "acknowledge"} == {1, 2, 3}


@pytest.mark.parametrize("phase", by_tier(["update"], ["update"], ["experience", "update"]))
def test_a_rank_that_is_killed_takes_only_its_step_with_it(
    phase: str, tmp_path: Path, undisturbed: Sequence[AppliedUpdate]
) -> None:
    repeated: list[int] = []
    left = [2]

    def kill(rank: int, begun: str) -> None:
        newest = CheckpointStore(tmp_path).newest()
        if begun == phase and rank == 1 and newest and newest.step == 1 and left:
            left.pop()
            os.kill(group.pids[1], signal.SIGKILL)

    group = RankGroup(2, tmp_path, on_phase=kill)
    try:
        loop = loop_of(tmp_path, group, STEPS, {}, on_repeat=lambda step, why: repeated.append(step))  # fmt: skip
        loop.run()
    finally:
        group.close()

    assert repeated == [2]
    assert applied(tmp_path) == undisturbed


def test_four_ranks_with_the_dispatcher_have_the_weights_of_rank_zero_gathering(
    tmp_path: Path,
) -> None:
    dispatched, gathered = tmp_path / "dispatched", tmp_path / "gathered"
    assert trained(dispatched, "--dispatcher", ranks=4) == 0
    assert trained(gathered, ranks=4) == 0

    assert [update.after for update in applied(dispatched)] == [
        update.after for update in applied(gathered)
    ]


def test_ranks_end_with_a_trainer_that_is_killed(tmp_path: Path) -> None:
    assert trained(tmp_path, end="commit:1") == -signal.SIGKILL
    named = str(tmp_path).encode()
    deadline = 100
    while left := [pid for pid in os.listdir("/proc") if pid.isdecimal() and _names(pid, named)]:
        deadline -= 1
        assert deadline, f"left behind: {left}"
        os.sched_yield()
        _wait_for(left[0])


def _names(pid: str, text: bytes) -> bool:
    try:
        return text in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _wait_for(pid: str) -> None:
    """Wait for the end of a process that is not a child, at most a second."""
    try:
        number = os.pidfd_open(int(pid))
    except OSError:
        return
    try:
        select.select([number], [], [], 1.0)
    finally:
        os.close(number)
