"""The pool of this machine's own nodes: whether it can require a sandbox, which is tried once."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from django.conf import settings

from domain.confinement import APPTAINER, OFF, PLAIN, REQUIRED, SANDBOX_CURE, can_sandbox
from domain.ids import ActionId

_log = logging.getLogger(__name__)


def plain_pools() -> set[str]:
    """Return the pools whose nodes the settings of this machine set to run plain processes."""
    return {settings.TANGRAM_NODE_POOL} if settings.TANGRAM_NODE_ISOLATION == PLAIN else set()


def local_rule() -> str:
    """Return the sandbox rule for the nodes of this machine: ``off`` where no sandbox works."""
    if settings.TANGRAM_CPU_BACKEND == "docker":
        return REQUIRED
    isolation = settings.TANGRAM_NODE_ISOLATION
    if isolation == APPTAINER:
        # The node does not start without it; as root it gives commands uid 0 of the machine.
        works = os.geteuid() != 0
    else:
        works = isolation != PLAIN and _sandbox_works(settings.TANGRAM_HOME)
    if works:
        return REQUIRED
    _log.warning(
        "no sandbox works on this machine, so its pool has sandbox: off, and commands run as plain"
        " processes of this user; to change it, %s, then set sandbox: required for the pool",
        SANDBOX_CURE,
    )
    return OFF


def _sandbox_works(home: Path) -> bool:
    # Imported here: only a first start on a machine with nodes of its own needs it.
    from managers.cpu.process.sandbox import find_sandbox
    from managers.cpu.workspaces import Workspaces

    with TemporaryDirectory(dir=home, prefix="sandbox-trial-") as folder:
        workspaces = Workspaces(Path(folder))
        workspaces.open()
        workspace = workspaces.alone(ActionId("trial"))
        found = find_sandbox(workspace, (), [])
        workspaces.remove(workspace)
        if found is not None and found.families is not None:
            found.families.close()
    return found is not None and can_sandbox(found.protection.isolation, found.protection)
