"""Loaded before everything else: no test reads or touches what this machine has of Tangram.

Settings are read from the environment when Django starts, which is before any conftest. So this is
a plugin of its own, named in pyproject.toml.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

#: Names of an outer setup that tests still may see: how the run itself is done.
_KEPT = frozenset({"TANGRAM_FAILED_CHECKS", "TANGRAM_TEST_DATABASE_URL", "TANGRAM_VENV"})


def _isolate() -> None:
    for name in [name for name in os.environ if name.startswith("TANGRAM_")]:
        if name not in _KEPT:
            del os.environ[name]
    os.environ.pop("DATABASE_URL", None)
    home = tempfile.mkdtemp(prefix="tangram-tests-")
    os.environ["TANGRAM_HOME"] = home
    atexit.register(shutil.rmtree, home, ignore_errors=True)


_isolate()
