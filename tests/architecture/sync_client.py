"""Write the blocking calls of the client from the asynchronous ones: ``python -m tests.architecture.sync_client``."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.architecture.tree import ROOT

SOURCE = ROOT / "tangram_client" / "_async_calls.py"
TARGET = ROOT / "tangram_client" / "_sync_calls.py"

#: In order; each is a regular expression and what replaces it.
REPLACEMENTS = (
    (r"async (def|with|for) ", r"\1 "),
    (r"await ", ""),
    (r"AsyncIterator", "Iterator"),
    (r"asynccontextmanager", "contextmanager"),
    (r"AsyncBaseTransport", "BaseTransport"),
    (r"AsyncCalls", "SyncCalls"),
    (r"AsyncTrajectory", "Trajectory"),
    (r"async_client", "sync_client"),
    (r"TaskKeeper", "ThreadKeeper"),
    (r"\.asleep\(", ".sleep("),
    (r"\.aclose\(", ".close("),
    (r"\.aread\(", ".read("),
    (r"\.aiter_bytes\(", ".iter_bytes("),
)
DOCSTRING = '''"""Every call of the client, blocking. Generated from `_async_calls`: change that one.

``python -m tests.architecture.sync_client`` writes this module.
"""'''


def generated() -> str:
    """Return the source of the blocking calls."""
    text = re.sub(r'^""".*?"""', lambda _: DOCSTRING, SOURCE.read_text(), count=1, flags=re.DOTALL)
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    for options in (["check", "--fix-only", "--unsafe-fixes", "--select", "I,SIM,UP"], ["format"]):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *options,
            "-q",
            "--stdin-filename",
            str(TARGET),
            "-",
        ]
        text = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(generated())
