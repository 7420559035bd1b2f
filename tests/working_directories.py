"""Processes by their working directory."""

from __future__ import annotations

from pathlib import Path

import psutil


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return the live processes whose working directory is ``folder``."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            cwd = process.cwd()
        except (OSError, psutil.Error):  # it ended, or another test's directory is too deep to read
            continue
        if cwd == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found
