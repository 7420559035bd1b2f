"""One replica: requests that wait are sampled together by its ranks, with the newest weights.

Rules
1. One thread has the ranks. A batch is of one version of the weights, and requests of equal prompts compute them once.
2. A batch for which there is no memory ends with `OutOfMemory`, every request of it. Nothing is made smaller or tried again: that
   is for the caller to decide. Then the ranks are started again, before the next batch.
3. The file of the weights is looked at before each batch: one that was replaced is loaded. A file that is wrong changes nothing.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from examples.rollouts.small_model.transformer import Request, Response, Shape
from examples.tensor_parallel.ranks import Answer, OutOfMemory, RankEnded, Ranks, WrongWeights

#: Rows that are sampled together, and the wait for others after the first request.
ROWS_AT_ONCE = 128
_GATHER_SECONDS = 0.004


class SampledRows(NamedTuple):
    """The rows of one request, and what their batch took."""

    responses: list[Response]
    #: Rows of the whole batch.
    rows: int
    batch: Answer
    weights_version: int


class _Work(NamedTuple):
    do: tuple[Request, ...] | Callable[[], Any]
    answer: Future[Any]


class Replica:
    """Ranks, their weights, and the thread that uses them."""

    def __init__(
        self, shape: Shape, shards: int, memory_bytes: int, weights: str = "", seed: int = 0
    ) -> None:
        """``weights``: a file that may be replaced at any time; empty: drawn from ``seed``."""
        self.shape, self.shards, self.memory_bytes = shape, shards, memory_bytes
        self._ranks = Ranks(shape, shards, memory_bytes)
        self._file, self._seed = weights, seed
        self._read: tuple[int, ...] | None = None
        self._version = 0
        #: Why the newest file was not taken.
        self.refused = ""
        #: Batches for which there was no memory.
        self.lacked_memory = 0
        self._waiting: queue.Queue[_Work] = queue.Queue()
        threading.Thread(target=self._work, daemon=True, name="replica").start()

    @property
    def weights_version(self) -> int:
        """The version that the next batch has, unless the file is replaced before."""
        return self._version

    @property
    def ready(self) -> bool:
        """The ranks have weights."""
        return self._ranks.running and self._read is not None

    def sample(self, requests: tuple[Request, ...]) -> SampledRows:
        """Return the responses to the rows of one request. Raises OutOfMemory, RankEnded, WrongWeights."""
        found: SampledRows = self._ask(requests)
        return found

    def load(self, path: str, version: int | None) -> int:
        """Take the weights of a file from now on, unless they have this version already; return it. Raises WrongWeights."""
        found: int = self._ask(lambda: self._load_other(path or self._file, version))
        return found

    def wait(self) -> None:
        """Return when the ranks have weights. Raises OutOfMemory, RankEnded, WrongWeights."""
        self._ask(self._prepare)

    def close(self) -> None:
        """End the ranks."""
        self._ranks.close()

    def _ask(self, do: Any) -> Any:
        answer: Future[Any] = Future()
        self._waiting.put(_Work(do, answer))
        return answer.result()

    def _work(self) -> None:
        while True:
            batch: list[_Work] = []
            work = self._waiting.get()
            while True:
                if callable(work.do):
                    self._sample(batch)
                    batch = []
                    _settle(work.answer, work.do)
                else:
                    if _rows([*batch, work]) > ROWS_AT_ONCE:
                        self._sample(batch)
                        batch = []
                    batch.append(work)
                try:
                    work = self._waiting.get(timeout=_GATHER_SECONDS)
                except queue.Empty:
                    break
            self._sample(batch)

    def _sample(self, batch: list[_Work]) -> None:
        if not batch:
            return
        try:
            self._prepare()
            found = self._ranks.sample([each for work in batch for each in _requests(work)])
        except Exception as error:
            self.lacked_memory += isinstance(error, OutOfMemory)
            for work in batch:
                work.answer.set_exception(error)
            self._start_again()
            return
        at, rows = 0, len(found.responses)
        for work in batch:
            own = found.responses[at : at + len(_requests(work))]
            at += len(own)
            work.answer.set_result(SampledRows(own, rows, found, self._version))

    def _start_again(self) -> None:
        """Start ranks that ended; what is in the way is said to the next request."""
        try:
            self._prepare()
        except (OutOfMemory, RankEnded, WrongWeights):
            self._ranks.close()

    def _prepare(self) -> None:
        """Start ranks that are not running, and take weights that are newer."""
        if not self._ranks.running:
            self._ranks.start()
            self._read = None
        seen = self._state()
        if seen == self._read:
            return
        try:
            self._version = self._ranks.load(self._file, self._seed)
            self.refused = ""
        except WrongWeights as error:
            if self._read is None:
                self._ranks.close()
                raise
            self.refused = str(error)
        self._read = seen

    def _load_other(self, path: str, version: int | None) -> int:
        if version is not None and version == self._version and self.ready:
            return version
        before = self._file, self._read
        self._file, self._read = path, self._read and ()
        self._prepare()
        if self.refused:
            refused, self.refused = self.refused, ""
            self._file, self._read = before
            raise WrongWeights(refused)
        return self._version

    def _state(self) -> tuple[int, ...]:
        """Return what changes when the file of the weights is replaced."""
        if not self._file:
            return (0,)
        try:
            found = os.stat(self._file)
        except OSError as error:
            if self._read is not None:
                return self._read
            self._ranks.close()
            raise WrongWeights(f"{self._file}: {error.strerror}") from None
        return found.st_mtime_ns, found.st_ino, found.st_size


def _requests(work: _Work) -> tuple[Request, ...]:
    assert not callable(work.do), "not a batch's"
    return work.do


def _rows(batch: list[_Work]) -> int:
    return sum(len(_requests(work)) for work in batch)


def _settle(answer: Future[Any], do: Callable[[], Any]) -> None:
    try:
        answer.set_result(do())
    except Exception as error:
        answer.set_exception(error)
