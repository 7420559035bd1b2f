"""A worker imports what its role needs: the time that this takes is part of how long a killed one is away."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT

_SCRIPT = """
import sys
from tangram_web.celery import app, load_jobs
app.loader.import_default_modules()
load_jobs()
print(*sorted(name for name in app.tasks if not name.startswith("celery.")))
print("simulator" in sys.modules)
"""


def imported(role: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], cwd=ROOT, env={**os.environ, "TANGRAM_ROLE": role, "CELERY_SKIP_CHECKS": "true"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.parametrize("role", ["node", "loop", "loop,node"])
def test_a_worker_that_runs_no_jobs_imports_none(role: str) -> None:
    assert imported(role) == ["", "False"]


@pytest.mark.parametrize("role", ["jobs", "projector", "node,jobs", ""])
def test_a_worker_that_may_run_jobs_knows_them(role: str) -> None:
    assert "records.prune" in imported(role)[0].split()


def test_a_worker_of_a_node_alone_loads_neither_the_apps_nor_what_only_the_loop_computes_with() -> (
    None
):
    script = (
        "import sys, tangram_web.celery as celery\n"
        "import scheduler.runtime.node.worker, managers.registry\n"
        "managers.registry.load(())\n"
        "celery.app.loader.import_default_modules()\n"
        "print([name for name in ('django.contrib.auth.models', 'numpy', 'scheduler.core') if name in sys.modules])"
    )
    environment = {**os.environ, "TANGRAM_ROLE": "node", "CELERY_SKIP_CHECKS": "true"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
