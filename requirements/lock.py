"""Rewrite the lock files from what is installed, with the hashes of all files: `make lock`.

A lock is the closure of a list in pyproject.toml over every Python we support, so that one file
serves all: what only some of them need keeps its marker, and its pin from the file before when it
is not installed here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from requirements.hashes import hashes_of

ROOT = Path(__file__).resolve().parents[1]
#: 3.11.2 is what Debian 12 has; some backports are needed below 3.11.3.
PYTHONS = ("3.11.2", "3.11.9", "3.12.9", "3.13.9")
HEADERS = {
    "core": "# Everything that running Tangram installs, pinned. Rewritten by `make lock`.\n",
    "predict": "# What the extra `predict` installs on top of core.lock, pinned. Rewritten by `make lock`.\n",
    "s3": "# What the extra `s3` installs on top of core.lock, pinned. Rewritten by `make lock`.\n",
    "test": "# What the tests need on top of core.lock, pinned. Rewritten by `make lock`.\n",
}


def closure(roots: list[str], pins: dict[str, str]) -> dict[str, str]:
    """Return name → lock line for ``roots`` and all they need on any supported Python."""
    markers: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str], str]] = set()
    todo = [Requirement(root) for root in roots]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        marker = _python_marker(requirement)
        key = (name, frozenset(requirement.extras), marker)
        if key in seen:
            continue
        seen.add(key)
        markers[name] = marker if markers.get(name, marker) == marker else ""
        todo.extend(_needs(name, requirement.extras))
    return {name: f"{name}=={_version(name, pins)}{marker}" for name, marker in markers.items()}


def _python_marker(requirement: Requirement) -> str:
    if "python" not in str(requirement.marker) or all(map(_holds(requirement), PYTHONS)):
        return ""
    return f" ; {requirement.marker}"


def _holds(requirement: Requirement, extras: frozenset[str] = frozenset()) -> Callable[[str], bool]:
    def on(python: str) -> bool:
        versions = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
        marker = requirement.marker
        return marker is None or any(
            marker.evaluate({**versions, "extra": extra}) for extra in extras | {""}
        )

    return on


def _needs(name: str, extras: set[str]) -> list[Requirement]:
    try:
        requirements = [Requirement(text) for text in distribution(name).requires or []]
    except PackageNotFoundError:
        return []
    return [each for each in requirements if any(map(_holds(each, frozenset(extras)), PYTHONS))]


def _version(name: str, pins: dict[str, str]) -> str:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return pins[name]


def read_pins(text: str) -> dict[str, str]:
    """Return name → version of a lock file's text."""
    lines = (line.partition(";")[0].rstrip(" \\") for line in requirement_lines(text))
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def requirement_lines(text: str) -> list[str]:
    """Return the lines of a lock file that name a package; hashes are in indented ones."""
    return [line for line in text.splitlines() if line[:1].isalnum()]


def with_hashes(lines: dict[str, str], pins: dict[str, str]) -> str:
    """Return the text of a lock: each line, and below it the hashes of its files."""
    hashes = hashes_of(pins)
    return "".join(
        " \\\n    --hash=".join([lines[name], *hashes[name]]) + "\n" for name in sorted(lines)
    )


def main() -> None:
    """Write all lock files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = _write("core", project["dependencies"], leave_out=set())
    for extra in ("predict", "s3", "test"):
        _write(extra, project["optional-dependencies"][extra], leave_out=core)
    _refresh("transformers")


def _write(name: str, roots: list[str], leave_out: set[str]) -> set[str]:
    path = ROOT / "requirements" / f"{name}.lock"
    lines = closure(roots, read_pins(path.read_text() if path.exists() else ""))
    kept = sorted(lines.keys() - leave_out)
    pins = read_pins("".join(f"{lines[each]}\n" for each in kept))
    path.write_text(HEADERS[name] + with_hashes({each: lines[each] for each in kept}, pins))
    return set(kept)


def _refresh(name: str) -> None:
    """Write the hashes of a lock whose pins are chosen by hand."""
    path = ROOT / "requirements" / f"{name}.lock"
    header, _, text = path.read_text().partition("\n")
    pins = read_pins(text)
    path.write_text(header + "\n" + with_hashes({n: f"{n}=={v}" for n, v in pins.items()}, pins))


if __name__ == "__main__":
    main()
