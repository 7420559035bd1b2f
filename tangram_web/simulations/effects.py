"""Effects: the last minutes of a pool with and without one change, simulated within seconds in a child process.

The page of a verb asks for it while the reader looks at the verb, so it is played at once, beside the queue of
simulations, which may be busy for minutes (decision 0241). The child outlives its question, because its start takes longer
than most simulations; it ends after five minutes without a question.

Rules
1. A question has `MOST_SECONDS`, after which the child is killed. The child has limits on time and memory that it sets
   itself, and no secrets in its environment. One question at a time in each web process; a reader waits for it, so its priority is not lowered.
2. The window is the longest of `WINDOWS` whose journal has at most `MOST_BYTES`, so that it can be played in time; after
   a question that took too long at most half as much as that had, and twice as much again after a fast one.
3. Nothing is stored, and nothing is changed.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from threading import BoundedSemaphore, Timer
from time import monotonic
from typing import Final

import msgspec
from django.conf import settings

from domain.errors import InvalidRequest, TangramError, Unavailable
from domain.inventory import Config
from simulator.effect_request import EffectAnswer, EffectRequest, EffectResult
from tangram_web.simulations.inputs import JournalWindow, WindowTooLarge
from tangram_web.simulations.pool_windows import (
    machines_of,
    nodes_of,
    read_window,
    used_before,
    variant_of,
)
from tangram_web.simulations.runner import child_environment

MOST_SECONDS: Final = 3.0
#: Seconds of a window, the longest first, and of the time before it.
WINDOWS: Final = (300, 60, 15)
BEFORE_SECONDS: Final = 60
MOST_BYTES: Final = 3 * 2**20
#: Bounds of the limit after questions that took too long.
LEAST_BYTES: Final = 64 * 2**10
_one_at_a_time = BoundedSemaphore()


class TookTooLong(TangramError):
    """The simulation did not end within `MOST_SECONDS`."""


class PlayedEffect(msgspec.Struct, frozen=True):
    """An effect, the length of its window, and how long it took from the question on."""

    result: EffectResult
    window_seconds: int
    wall_seconds: float


def play_effect(
    pool: str, now: Config, then: Config, *, pauses: bool = False, began: float | None = None,
    **more: object,
) -> PlayedEffect:  # fmt: skip
    """Simulate the last minutes of ``pool`` under both configurations; ``more`` has members of `EffectRequest`.

    ``pauses``: the change is about a pause of the pool. Raises InvalidRequest where nothing can be played, Unavailable,
    TookTooLong.
    """
    began = monotonic() if began is None else began
    if not _one_at_a_time.acquire(timeout=MOST_SECONDS):
        raise TookTooLong
    try:
        seconds, window = _window(now, pool, _simulator.most_bytes)
        request = EffectRequest(
            now=variant_of(now, pool, window, paused=pauses and now.pools[pool].paused),
            then=variant_of(then, pool, window, paused=pauses and then.pools[pool].paused),
            machines=machines_of(nodes_of(pool), window.residents),
            counts_from=window.counts_from,
            seconds=float(seconds),
            used=used_before(now, window)[0],
        )
        request = msgspec.structs.replace(request, **more)
        result = _played(request, window.content, MOST_SECONDS - (monotonic() - began))
    finally:
        _one_at_a_time.release()
    return PlayedEffect(result, seconds, monotonic() - began)


def _window(config: Config, pool: str, most_bytes: int) -> tuple[int, JournalWindow]:
    """Return the longest window that can be played in time, with its length."""
    for seconds in WINDOWS:
        try:
            return seconds, read_window(config, pool, seconds, BEFORE_SECONDS, most_bytes)
        except WindowTooLarge:
            continue
    raise TookTooLong


def warm() -> None:
    """Start the process that simulates, where it does not run yet: a reader is about to look at a verb."""
    if _one_at_a_time.acquire(blocking=False):
        try:
            _simulator.start()
        finally:
            _one_at_a_time.release()


class _Simulator:
    """The child process; its caller holds `_one_at_a_time`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        #: Largest window that this machine plays in time, as far as the last questions tell.
        self.most_bytes = MOST_BYTES

    def start(self) -> subprocess.Popen[bytes]:
        """Return the running child; start one where the last one has ended. Raises Unavailable."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "simulator.effect"], cwd=settings.BASE_DIR,
                    env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
            except OSError as error:
                raise Unavailable(f"a simulation cannot be started: {error}") from error
        return self._process

    def stop(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def ask(self, request: bytes, trace: bytes, seconds: float) -> EffectAnswer:
        """Return its answer. Raises TookTooLong, after which another child is started, and Unavailable."""
        process, began = self.start(), monotonic()
        late = Timer(max(0.05, seconds), process.kill)
        late.start()
        try:
            line = _exchange(process, [b"%d %d\n" % (len(request), len(trace)), request, trace])
        finally:
            late.cancel()
        if not line.endswith(b"\n"):
            self.most_bytes = max(LEAST_BYTES, min(self.most_bytes, len(trace)) // 2)
            self.stop()
            self.start()
            raise TookTooLong
        if monotonic() - began < MOST_SECONDS / 4:
            self.most_bytes = min(MOST_BYTES, 2 * self.most_bytes)
        return msgspec.json.decode(line, type=EffectAnswer)


def _exchange(process: subprocess.Popen[bytes], parts: list[bytes]) -> bytes:
    """Write a question and return the line of its answer; not a whole line where the child has ended."""
    if process.stdin is None or process.stdout is None:
        return b""
    try:
        process.stdin.writelines(parts)
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    return process.stdout.readline()


_simulator = _Simulator()
atexit.register(_simulator.stop)


def _played(request: EffectRequest, trace: bytes, seconds: float) -> EffectResult:
    if seconds <= 0:
        raise TookTooLong
    answer = _simulator.ask(msgspec.json.encode(request), trace, seconds)
    if answer.result is None:
        raise InvalidRequest(answer.problem)
    return answer.result
