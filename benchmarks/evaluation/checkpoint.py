"""Simulations that are done already, so that a report which was interrupted goes on where it was.

One JSON line for each, in the order in which they ended: the digest of everything it follows from
(the case, the inputs, the scale, and the source of whatever is simulated), the result, and how long
it took. Lines of another version or another input are passed over, and so is a last line that was cut
off. Once the whole report is written, the file is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

from benchmarks.evaluation.cases import Case, Inputs, Scale
from domain.errors import InvalidRequest
from simulator.compare import Timed
from simulator.result import Result

#: What results follow from; how a report looks is no part of that.
_SOURCES = (
    "domain", "managers", "scheduler/core", "simulator", "tangram_client/traces",
    "benchmarks/evaluation/cases.py", "benchmarks/evaluation/model_servers.py",
    "benchmarks/evaluation/serverless_llm.py", "benchmarks/evaluation/static_services.py",
)  # fmt: skip


class _Line(msgspec.Struct, frozen=True):
    key: str
    result: Result
    wall_seconds: float


class Kept:
    """The file, and what was found in it."""

    def __init__(self, path: Path, inputs: Inputs, scale: Scale) -> None:
        """Raises InvalidRequest when the file cannot be read."""
        self._path = path
        rest = repr((inputs.recordings, inputs.requests, scale))
        self._about = sha256((_version() + rest).encode()).hexdigest()
        self._known = {line.key: line for line in self._lines()}

    def _lines(self) -> Iterable[_Line]:
        decoder = msgspec.json.Decoder(_Line)
        try:
            lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        except OSError as error:
            raise InvalidRequest(f"{self._path}: {error.strerror}") from None
        for line in lines:
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError:
                continue  # cut off while it was written, or of another version

    def find(self, case: Case) -> Timed | None:
        """Return what ``case`` gave before."""
        line = self._known.get(self._key(case))
        return None if line is None else Timed(line.result, line.wall_seconds)

    def keep(self, case: Case, timed: Timed) -> None:
        """Add what ``case`` gave. Raises InvalidRequest when it cannot be written."""
        line = _Line(self._key(case), timed.result, timed.wall_seconds)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(b"\n" + msgspec.json.encode(line))
        except OSError as error:
            raise InvalidRequest(f"{self._path}: {error.strerror}") from None

    def remove(self) -> None:
        """Forget all of it."""
        self._path.unlink(missing_ok=True)

    def _key(self, case: Case) -> str:
        return sha256(f"{self._about} {case!r}".encode()).hexdigest()


@cache
def _version() -> str:
    """Return a digest of the source of whatever is simulated."""
    root, digest = Path(__file__).parents[2], sha256()
    for source in _SOURCES:
        place = root / source
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
