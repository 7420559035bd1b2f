"""Words that the project's text avoids, because they hide the subject of a sentence.

A sentence names the action, the service, the chunk or the request: "the action waits for a core",
not "somebody waits". The list holds for source, templates, scripts and documents.
"""

from __future__ import annotations

import re

from tests.architecture.tree import ROOT, name, own_files

WORDS = (
    "nobody",
    "somebody",
    "everybody",
    "whoever",
    "whom",
    "anew",
    "told",
    "tells of",
    "lies there",
    "lay down",
    "laid down",
    "came and went",
    "comes and goes",
    "goes home",
    "go home",
)
#: File → why its text may hold words of the list.
ALLOWED = {
    "tests/architecture/words.py": "is the list",
    "docker-compose.yml": "names the Unix user nobody",
    "tests/docker_engine.py": "makes an image with the Unix account `nobody`",
}
#: Recorded results and vendored code are not our sentences.
_LEFT_OUT = ("benchmarks/results/", "requirements/")
# An underscore separates words of a name; a letter does not.
_EXPRESSION = re.compile(
    r"(?<![A-Za-z])(" + "|".join(word.replace(" ", r"\s+") for word in WORDS) + r")(?![A-Za-z])",
    re.IGNORECASE,
)


def found() -> list[str]:
    """Return each use as ``path:line: word``."""
    return [
        f"{name(path)}:{number}: {match.group(1)}"
        for path in own_files()
        if path.is_relative_to(ROOT)
        and name(path) not in ALLOWED
        and not name(path).startswith(_LEFT_OUT)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        for match in _EXPRESSION.finditer(line)
    ]


if __name__ == "__main__":
    import sys

    sys.stdout.write("\n".join(found()) + "\n")
