"""Puller of batches: a rank of a trainer reads its rows from rollout workers into flat arrays. Numpy and the standard library alone.

    manifest = json.load(…)                       # the answer of POST /api/v1/batches
    pulled = pull(manifest, rank=0)
    pulled["tokens"], pulled["loss_mask"]         # flat; row i has lengths[i] tokens

Arrays of n rows with L tokens together, prompts included: ``rows`` int64[n] (numbers in ``manifest["rows"]``), ``lengths`` and
``prompt_lengths`` int64[n], ``rewards`` float64[n], ``tokens`` int32[L], ``loss_mask`` uint8[L] (1: sampled by the model), ``logprobs``
float32[L] (0 where the mask is 0, NaN where the engine gave none), ``weights_versions`` int32[L] (-1 where the mask is 0). They are the local
arrays of `layout_of`, from which `dispatcher.plan` moves them on.

Rules
1. Memory is that of the arrays, whose sizes the manifest states, and one part of log-probabilities for each connection.
2. A row is asked from the worker that finished its rollout, then from the other workers, then from the gateway. Each of them
   has the same bytes, and each row has a checksum. A row that is whole is not pulled again.
3. A worker that is lost, hangs for `timeout_seconds` or sends a damaged row is passed over for the rest of the pull, unless none is left:
   then all are tried again after a pause, for up to `patience_seconds`, as while parts of Tangram start again.
4. What no other address can change is raised at once: an expired batch, another rank's rows, deleted tokens.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from dispatcher.layout import Layout, LayoutError, Mesh, Owned, Ragged, TensorSpec

#: Most bytes of the rows of one request: what a lost connection may repeat is less.
PART_BYTES = 32 * 1024 * 1024
MOST_ROWS = 256
#: Pause before the second round over all addresses; each later one is twice as long, up to the most.
PAUSE_SECONDS = 0.25
MOST_PAUSE_SECONDS = 4.0

_HEADER = struct.Struct("<4s7I")
_ROW, _END, _REFUSAL = b"TGR1", b"TGRE", b"TGRX"
_HAS_LOGPROBS = 1
_NOT_SAMPLED = -1


class BatchError(Exception):
    """Rows of a batch cannot be pulled."""


class BatchExpired(BatchError):
    """The batch is not kept any more: create it again from its rollouts."""


class RankRefused(BatchError):
    """The token is not that of this batch and rank, or the rows are another rank's."""


class RowsGone(BatchError):
    """The tokens of a rollout are deleted or damaged; ``rollout`` names it."""

    def __init__(self, message: str, rollout: str) -> None:
        super().__init__(message)
        self.rollout = rollout


class RowsUnreachable(BatchError):
    """No address serves the rows now; the message has the reason of each."""


class _Passed(Exception):
    """An address does not serve rows now; another one may."""


class _Row(NamedTuple):
    """Where a row goes in the arrays."""

    place: int
    number: int
    first: int
    prompt: int
    length: int
    sampled: int
    bytes: int
    worker: str


def pull(
    manifest: Mapping[str, Any],
    rank: int,
    *,
    gateway: str = "",
    connections: int = 4,
    timeout_seconds: float = 30.0,
    patience_seconds: float = 30.0,
    progress: Callable[[int], object] | None = None,
) -> dict[str, np.ndarray]:
    """Return the rows of ``rank`` as flat arrays, in the order of its rows in the manifest.

    ``gateway``: base URL of Tangram, for when no worker can be reached (default: ``gateway`` of the manifest). ``timeout_seconds``: of a
    connection, and of a silence in it; ``patience_seconds``: since the pull began, for rows that no address serves. ``progress`` is called with the number of each row that is whole, in any thread.

    Raises BatchExpired, RankRefused, RowsGone, RowsUnreachable; BatchError for a manifest without this rank's token.
    """
    owner = next((each for each in manifest["owners"] if each["rank"] == rank), None)
    if owner is None or not owner.get("token"):
        known = ", ".join(str(e["rank"]) for e in manifest["owners"] if e.get("token")) or "none"
        raise BatchError(f"the manifest has no token of rank {rank}; it has those of {known}")
    rows = _placed(manifest, owner["rows"])
    arrays = _arrays(manifest, rows)
    addresses = _Addresses(manifest, gateway or manifest.get("gateway", ""), timeout_seconds)
    work = _Work(rows, arrays, progress or (lambda _: None))
    until = time.monotonic() + patience_seconds
    puller = _Puller(manifest["id"], rank, owner["token"], addresses, work, until)
    threads = [
        threading.Thread(target=puller.run, name=f"pull-{number}", daemon=True)
        for number in range(min(max(1, connections), max(1, len(work.parts))))
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C: the threads take no further part
        work.fail(error)
        raise
    if work.error is not None:
        raise work.error
    return arrays


def layout_of(manifest: Mapping[str, Any]) -> Layout:
    """Return where the pulled rows are: `pull` of each rank gives its local arrays of this layout, for `dispatcher.plan`.

    Samples are the rows of the batch that a rank owns, in their order. Ranks that own the same rows must be those of one dp coordinate,
    as in a batch whose layout is a mesh; LayoutError for others.
    """
    shared: dict[tuple[int, ...], list[int]] = {}
    for owner in manifest["owners"]:
        shared.setdefault(tuple(owner["rows"]), []).append(owner["rank"])
    idle = shared.pop((), [])
    same = len(next(iter(shared.values()))) if shared else 1
    if any(len(ranks) != same for ranks in shared.values()) or len(idle) % same:
        raise LayoutError(
            "owners", "some rows have more ranks than others: name the layout yourself"
        )
    groups = [
        *shared.items(), *(((), idle[at : at + same]) for at in range(0, len(idle), same)),
    ]  # fmt: skip
    lengths = [row["prompt_tokens"] + row["response_tokens"] for row in manifest["rows"]]
    owners = [-1] * len(lengths)
    for number, (rows, _) in enumerate(groups):
        for row in rows:
            if owners[row] >= 0:
                raise LayoutError(
                    "owners", f"row {row} has owners with other rows: name the layout yourself"
                )
            owners[row] = number
    ranks = [rank for _, group in groups for rank in group]
    mesh = Mesh(dp=len(groups), tp=same, ranks=ranks)
    tokens, rows_ = Ragged(lengths), (len(lengths),)
    shapes: dict[str, tuple[str, Any]] = {
        "rows": ("int64", rows_), "lengths": ("int64", rows_), "prompt_lengths": ("int64", rows_), "rewards": ("float64", rows_),
        "tokens": ("int32", tokens), "loss_mask": ("uint8", tokens), "logprobs": ("float32", tokens), "weights_versions": ("int32", tokens),
    }  # fmt: skip
    specs = [
        TensorSpec(name, kind, shape, dp=Owned(owners)) for name, (kind, shape) in shapes.items()
    ]
    return Layout(mesh, specs)


def _placed(manifest: Mapping[str, Any], numbers: Sequence[int]) -> list[_Row]:
    placed, first = [], 0
    for place, number in enumerate(numbers):
        row = manifest["rows"][number]
        length = row["prompt_tokens"] + row["response_tokens"]
        placed.append(
            _Row(
                place,
                number,
                first,
                row["prompt_tokens"],
                length,
                row["sampled_tokens"],
                row["bytes"],
                row.get("worker", ""),
            )
        )
        first += length
    return placed


def _arrays(manifest: Mapping[str, Any], rows: Sequence[_Row]) -> dict[str, np.ndarray]:
    tokens = sum(row.length for row in rows)
    rewards = [manifest["rows"][row.number]["reward"] for row in rows]
    return {
        "rows": np.array([row.number for row in rows], np.int64),
        "lengths": np.array([row.length for row in rows], np.int64),
        "prompt_lengths": np.array([row.prompt for row in rows], np.int64),
        "rewards": np.array(rewards, np.float64),
        "tokens": np.empty(tokens, np.int32),
        "loss_mask": np.zeros(tokens, np.uint8),
        "logprobs": np.zeros(tokens, np.float32),
        "weights_versions": np.full(tokens, _NOT_SAMPLED, np.int32),
    }


class _Address(NamedTuple):
    """A server of rows; name empty: the gateway."""

    name: str
    host: str
    #: In front of ``/batches/…``.
    prefix: str
    encrypted: bool


class _Addresses:
    """Servers of rows, and which of them failed."""

    def __init__(self, manifest: Mapping[str, Any], gateway: str, timeout_seconds: float) -> None:
        self._workers = [
            _Address(each["name"], each["address"], "", False) for each in manifest["workers"]
        ]
        self._gateway: list[_Address] = []
        if gateway:
            found = urlsplit(gateway if "://" in gateway else f"http://{gateway}")
            prefix = found.path.rstrip("/")
            prefix = prefix if prefix.endswith("/api/v1") else f"{prefix}/api/v1"
            self._gateway = [_Address("", found.netloc, prefix, found.scheme == "https")]
        self._timeout_seconds = timeout_seconds
        self.failed: dict[_Address, str] = {}

    def order(self, worker: str, rank: int, *, failed: bool = False) -> list[_Address]:
        """Return the servers to try for a row of ``worker``: its own first, the gateway last; ``failed``: also those that failed."""
        start = rank % len(self._workers) if self._workers else 0
        others = self._workers[start:] + self._workers[:start]
        own = [each for each in others if each.name == worker]
        rest = [each for each in others if each.name != worker]
        every = (*own, *rest, *self._gateway)
        return [each for each in every if failed or each not in self.failed]

    def connect(self, address: _Address) -> HTTPConnection:
        """Return a connection, which is opened by its first request."""
        kind = HTTPSConnection if address.encrypted else HTTPConnection
        return kind(address.host, timeout=self._timeout_seconds)

    def why(self) -> str:
        """Return the reasons of all failures."""
        failed = sorted(self.failed.items())
        each = (f"{a.name or 'gateway'} at {a.host}: {why}" for a, why in failed)
        return "; ".join(each) or "the manifest names no worker that lives, and no gateway is given"


class _Work:
    """Parts that no thread has taken, and the arrays that they fill."""

    def __init__(
        self, rows: Sequence[_Row], arrays: dict[str, np.ndarray], progress: Callable[[int], object]
    ) -> None:
        self.parts = deque(_parts(rows))
        self.arrays = arrays
        self.progress = progress
        self.error: BaseException | None = None
        self.failed = threading.Event()

    def fail(self, error: BaseException) -> None:
        """End the pull with an error; the first one counts."""
        self.error = self.error or error
        self.failed.set()

    def next(self) -> list[_Row] | None:
        """Return the next part; None: there is none, or the pull has failed."""
        try:
            return None if self.error is not None else self.parts.popleft()
        except IndexError:
            return None


def _parts(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Return rows by worker, cut into parts, with the workers in turn."""
    by_worker: dict[str, list[list[_Row]]] = {}
    for row in rows:
        parts = by_worker.setdefault(row.worker, [])
        used = sum(each.bytes for each in parts[-1]) if parts else 0
        if not parts or len(parts[-1]) >= MOST_ROWS or used + row.bytes > PART_BYTES:
            parts.append([])
        parts[-1].append(row)
    longest = max(map(len, by_worker.values()), default=0)
    return [parts[at] for at in range(longest) for parts in by_worker.values() if at < len(parts)]


class _Puller:
    """The threads of one pull."""

    def __init__(
        self,
        batch: str,
        rank: int,
        token: str,
        addresses: _Addresses,
        work: _Work,
        until: float,
    ) -> None:
        self._path = f"/batches/{batch}/rows?rank={rank}&rows="
        self._rank, self._token = rank, token
        self._addresses, self._work, self._until = addresses, work, until

    def run(self) -> None:
        """Pull parts until there is none."""
        try:
            while (part := self._work.next()) is not None:
                self._part(part)
        except BaseException as error:  # the caller of `pull` gets it
            self._work.fail(error)

    def _part(self, part: list[_Row]) -> None:
        left, again, pause = deque(part), False, PAUSE_SECONDS
        while True:
            for address in self._addresses.order(part[0].worker, self._rank, failed=again):
                try:
                    self._from(address, left)
                except (_Passed, HTTPException, OSError, EOFError) as error:
                    self._addresses.failed[address] = str(error) or type(error).__name__
                if not left or self._work.error is not None:
                    return
            if time.monotonic() + pause > self._until:
                break
            if self._work.failed.wait(pause):
                return
            again, pause = True, min(2 * pause, MOST_PAUSE_SECONDS)
        raise RowsUnreachable(
            f"{len(left)} rows of rank {self._rank} cannot be pulled: {self._addresses.why()}."
            " Ask for the manifest again (GET /api/v1/batches/{id}): it names the workers that live now"
        )

    def _from(self, address: _Address, left: deque[_Row]) -> None:
        """Pull rows from an address; rows that are whole are taken off ``left``."""
        with (
            closing(self._addresses.connect(address)) as connection,
            closing(self._response(connection, address, left)) as response,
        ):
            if response.status != 200:
                _raise_refusal(response.status, response.read())
            while left:
                self._row(response, left[0])
                self._work.progress(left.popleft().number)
            end = _read(response, bytearray(_HEADER.size))
            if _HEADER.unpack(end)[0] != _END:
                raise _Passed("the stream has no end")

    def _response(
        self, connection: HTTPConnection, address: _Address, rows: Iterable[_Row]
    ) -> HTTPResponse:
        """Ask for rows."""
        asked = address.prefix + self._path + _ranges([row.number for row in rows])
        connection.request("GET", asked, headers={"Authorization": f"Bearer {self._token}"})
        return connection.getresponse()

    def _row(self, response: HTTPResponse, row: _Row) -> None:
        """Read one frame into the arrays. Raises `_Passed` for another or a damaged one."""
        kind, number, prompt, behind, sampled, flags, runs, checksum = _HEADER.unpack(
            _read(response, bytearray(_HEADER.size))
        )
        if kind == _REFUSAL:
            _raise_problem(_json(_read(response, bytearray(number))))
        lengths = (number, prompt, prompt + behind, sampled)
        if kind != _ROW or lengths != (row.number, row.prompt, row.length, row.sampled):
            raise _Passed(f"row {row.number} has other lengths than the manifest")
        if _HEADER.size + 12 * runs + 4 * (row.length + flags * sampled) != row.bytes:
            raise _Passed(f"row {row.number} has another size than the manifest")
        triples = np.frombuffer(_read(response, bytearray(12 * runs)), "<i4").reshape(-1, 3)
        whole = slice(row.first, row.first + row.length)
        tokens = self._work.arrays["tokens"][whole]
        _read(response, tokens.view(np.uint8).data)
        logprobs = np.empty(sampled if flags & _HAS_LOGPROBS else 0, np.float32)
        _read(response, logprobs.view(np.uint8).data)
        found = 0
        for piece in (triples, tokens, logprobs):
            found = zlib.crc32(piece.data, found)
        if found != checksum:
            raise _Passed(f"row {row.number} fails its checksum")
        if sys.byteorder == "big":
            tokens.byteswap(True)
            logprobs.byteswap(True)
        self._scatter(row, triples, logprobs)

    def _scatter(self, row: _Row, triples: np.ndarray, logprobs: np.ndarray) -> None:
        """Fill mask, versions and log-probabilities of a row by its runs."""
        arrays, at, used = self._work.arrays, row.first + row.prompt, 0
        for is_sampled, version, count in triples.tolist():
            part = slice(at, at + count)
            at += count
            arrays["loss_mask"][part] = is_sampled
            arrays["weights_versions"][part] = version
            if is_sampled:
                given = logprobs[used : used + count]
                arrays["logprobs"][part] = given if len(given) else np.nan
                used += count


def _read(response: HTTPResponse, into: Any) -> Any:
    """Fill a buffer. Raises EOFError where the stream ends before."""
    view, at = memoryview(into), 0
    while at < len(view):
        count = response.readinto(view[at:])
        if not count:
            raise EOFError("the connection was lost")
        at += count
    return into


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as a query has them: ``0-63,70``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _raise_refusal(status: int, body: bytes) -> None:
    problem = _json(body)
    if status == 410:
        raise BatchExpired(problem.get("detail") or "the batch has expired: create it again")
    if status in (401, 403, 422):
        raise RankRefused(problem.get("detail") or f"refused with HTTP {status}")
    raise _Passed(problem.get("detail") or f"HTTP {status}")


def _raise_problem(problem: Mapping[str, Any]) -> None:
    """Raise what ended a stream."""
    if problem.get("code") == "unavailable":
        raise _Passed(str(problem.get("detail")))
    raise RowsGone(str(problem.get("detail")), str(problem.get("rollout", "")))


def _json(body: bytes | bytearray) -> dict[str, Any]:
    try:
        found = json.loads(bytes(body))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
