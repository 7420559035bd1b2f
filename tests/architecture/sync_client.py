"""Write the blocking calls of the client from the asynchronous ones: ``python -m tests.architecture.sync_client``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.architecture.tree import ROOT

#: Asynchronous modules, and those that are written from them.
MODULES = {
    ROOT / "tangram_client" / f"_async_{name}.py": ROOT / "tangram_client" / f"_sync_{name}.py"
    for name in (
        "batches",
        "calls",
        "dapo",
        "files",
        "fleets",
        "objects",
        "rollouts",
        "selectors",
        "sessions",
        "snapshots",
        "views",
    )
}

#: In order; each is a regular expression and what replaces it.
REPLACEMENTS = (
    (r"async (def|with|for) ", r"\1 "),
    (r"await ", ""),
    (r"AsyncIterator", "Iterator"),
    (r"asynccontextmanager", "contextmanager"),
    (r"AsyncBaseTransport", "BaseTransport"),
    (r"AsyncCalls", "SyncCalls"),
    (r"AsyncTrajectory", "Trajectory"),
    (r"AsyncObjectSender", "ObjectSender"),
    (r"AsyncSender", "Sender"),
    (r"AsyncSnapshotCalls", "SnapshotCalls"),
    (r"AsyncRolloutCalls", "RolloutCalls"),
    (r"AsyncBackendCalls", "BackendCalls"),
    (r"AsyncBatchCalls", "BatchCalls"),
    (r"AsyncFleetCalls", "FleetCalls"),
    (r"AsyncSelectorCalls", "SelectorCalls"),
    (r"AsyncViewCalls", "ViewCalls"),
    (r"AsyncPatientSender", "PatientSender"),
    (r"AsyncRolloutClient", "RolloutClient"),
    (r"AsyncDapo", "Dapo"),
    (r"__aiter__", "__iter__"),
    (r"__anext__", "__next__"),
    (r"StopAsyncIteration", "StopIteration"),
    (r"async_client", "sync_client"),
    (r"async_sender", "sync_sender"),
    (r"_async_", "_sync_"),
    (r"asyncio\.to_thread\((\w+), ", r"\1("),
    (r"TaskKeeper", "ThreadKeeper"),
    (r"\.asleep\(", ".sleep("),
    (r"\.aclose\(", ".close("),
    (r"\.aread\(", ".read("),
    (r"\.aiter_bytes\(", ".iter_bytes("),
)
DOCSTRINGS = {
    "_async_batches": "Batches, blocking.",
    "_async_calls": "Every call of the client, blocking.",
    "_async_dapo": "Efficient DAPO, blocking.",
    "_async_files": "Files of an environment, blocking.",
    "_async_fleets": "Fleets of language models, blocking.",
    "_async_objects": "Large contents by URLs of the object store, blocking.",
    "_async_rollouts": "Rollouts and backends, blocking.",
    "_async_selectors": "Selectors of parallelism, blocking.",
    "_async_sessions": "Sessions of an environment, blocking.",
    "_async_snapshots": "Snapshots of environments, blocking.",
    "_async_views": "Saved views, blocking.",
}
_REST = """ Generated from `{name}`: change that one.

``python -m tests.architecture.sync_client`` writes this module.
"""


def generated(source: Path) -> str:
    """Return the source of the blocking module."""
    docstring = f'"""{DOCSTRINGS[source.stem]}{_REST.format(name=source.stem)}"""'
    text = re.sub(r'^""".*?"""', "DOCSTRING", source.read_text(), count=1, flags=re.DOTALL)
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    text = text.replace("DOCSTRING", docstring, 1)
    fixes = ["check", "--fix-only", "--unsafe-fixes", "--select", "I,SIM,UP,F401"]
    for options in (fixes, ["format"]):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *options,
            "-q",
            "--stdin-filename",
            str(MODULES[source]),
            "-",
        ]
        text = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


if __name__ == "__main__":
    for module, target in MODULES.items():
        target.write_text(generated(module))
