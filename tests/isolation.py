"""Isolation from the machine: its settings, its Tangram, and the signals that a shell ignores.

A pytest plugin, named in pyproject.toml, because Django reads settings from the environment before
any conftest is loaded.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

#: Names in the environment that describe the test run itself.
_KEPT = frozenset({"TANGRAM_FAILED_CHECKS", "TANGRAM_TEST_DATABASE_URL", "TANGRAM_TEST_KUBERNETES", "TANGRAM_VENV"})  # fmt: skip


def _isolate() -> None:
    for name in [name for name in os.environ if name.startswith("TANGRAM_")]:
        if name not in _KEPT:
            del os.environ[name]
    os.environ.pop("DATABASE_URL", None)
    home = tempfile.mkdtemp(prefix="tangram-tests-")
    os.environ["TANGRAM_HOME"] = home
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    # A shell without job control starts background commands with SIGINT ignored, which programs under
    # test would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_isolate()
