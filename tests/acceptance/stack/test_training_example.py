"""The example that trains a small model, on a running Tangram: teacher, imitation, a step of DAPO, the next weights version."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_small_model_imitates_a_teacher_and_takes_a_step(tangram: Tangram) -> None:
    command = [sys.executable, "-m", "examples.rollouts.train", "math", "--port", str(free_port())]
    sizes = ["--teacher-rollouts", "300", "--epochs", "16", "--steps", "1", "--prompts", "2"]
    ran = subprocess.run(
        [*command, *sizes], cwd=ROOT, text=True, timeout=500, capture_output=True, check=False,
        env={"TANGRAM_HOME": str(tangram.home), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert 0.2 < figures["teacher"] < 0.6, "the teacher errs in six of ten answers"
    assert len(figures["curve"]) == 1, ran.stdout
    # The weights that sampled are those that learn, so the ratio of each token is 1.
    assert abs(figures["curve"][0]["loss"]) < 0.05
    assert figures["curve"][0]["clipped"] == 0
