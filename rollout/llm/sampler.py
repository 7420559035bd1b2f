"""Sampling of one turn: the backend that the rollout is bound to is asked, and another one when it fails or is gone.

Lifetimes: one sampler for a worker process, one `SeatBinding` for each rollout that runs. The binding keeps the seat between turns
(sticky), so that the engine's cache of the prompt is used again.

Rules
1. Before each call the binding is compared with what is registered. A backend that was removed, drained or has new weights
   since is not asked for another turn under the old binding: the rollout is bound again.
2. A call in flight ends on the weights it began with, and its tokens carry their version. If its backend is gone it is
   sampled again: nothing of a response is used before all of it has arrived and is checked.
3. The versions of one rollout's tokens differ by at most ``max_version_span``. A seat outside of it raises
   `VersionSpanExceeded`, and no token is sampled.
4. A failure of a backend costs one of the attempts; that it was removed costs none. `NoBackendAnswers` is a failure of the
   infrastructure, never of the agent (I2).
5. Waiting for a seat is the binding's, which does not count it (I9).
6. Failures become the reason of a rollout, which readers see who may not know addresses: a backend whose name is made of its
   address is called by its number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from domain.backend_addresses import is_made_name
from domain.errors import TangramError, Unavailable
from rollout.llm.dialects import DIALECTS, AskedFor, MalformedAnswer
from rollout.llm.engine_client import BackendBusy, BackendFailed, EngineClient
from rollout.llm.pool_binding import BackendHealth
from rollout.llm.probing import ProbedBackend, probe
from rollout.llm.sampling_options import SamplingOptions
from rollout.ports import Seat
from rollout.tokens.sampled import SampledTokens

#: Attempts wait so long before the next, doubled each time.
_FIRST_PAUSE_SECONDS: Final = 0.1
_MOST_PAUSE_SECONDS: Final = 10.0


class NoBackendAnswers(Unavailable):
    """Every attempt to sample a turn failed."""


class VersionSpanExceeded(TangramError):
    """The weights that are left are newer than the rollout's limit allows."""


class SeatBinding(Protocol):
    """The backend that a rollout is bound to (`rollout.llm.pool_binding`)."""

    @property
    def seat(self) -> Seat:
        """Return the present seat."""

    async def registered(self) -> Sequence[Seat]:
        """Return the backends of the pool that take calls, with their present weights versions."""

    async def rebind(self, reason: str) -> Seat:
        """Bind to another backend, and wait, uncounted, where there is none."""


class SampleRequest(NamedTuple):
    """One turn to sample."""

    prompt_ids: Sequence[int]
    options: SamplingOptions
    vocabulary_size: int
    #: Weights version of the rollout's first token, None before it.
    first_version: int | None = None
    max_version_span: int | None = None


class TurnSample(NamedTuple):
    """A sampled turn and where it is from."""

    tokens: SampledTokens
    seat: Seat


class SamplerLimits(msgspec.Struct, frozen=True):
    """How often a turn is tried."""

    #: Failed calls before `NoBackendAnswers`.
    attempts: int = 6
    #: Refusals for being busy before one counts as a failure.
    busy: int = 20
    #: Failed calls whose backend was removed meanwhile, which cost no attempt.
    moves: int = 100


class SamplesTurns(Protocol):
    """What samples the turns of one rollout: of a pool of backends (`BoundSampler`), or of a fleet."""

    async def sample(self, request: SampleRequest) -> TurnSample:
        """Return the tokens of one turn.

        Raises NoBackendAnswers, VersionSpanExceeded, ContextOverflow, RequestRefused.
        """


class BoundSampler:
    """Samples the turns of one rollout at the backend that it is bound to."""

    def __init__(self, sampler: TurnSampler, binding: SeatBinding) -> None:
        self._sampler = sampler
        self._binding = binding

    async def sample(self, request: SampleRequest) -> TurnSample:
        """Return the tokens of one turn. Raises as `TurnSampler.sample`."""
        return await self._sampler.sample(self._binding, request)


class TurnSampler:
    """Samples turns of the rollouts of one worker."""

    def __init__(
        self,
        client: EngineClient,
        *,
        limits: SamplerLimits | None = None,
        health: BackendHealth | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._limits = limits or SamplerLimits()
        self.health = health or BackendHealth()
        self._pause = pause
        self._probes: dict[str, asyncio.Future[ProbedBackend]] = {}

    async def sample(self, binding: SeatBinding, request: SampleRequest) -> TurnSample:
        """Return the tokens of one turn.

        Raises NoBackendAnswers, VersionSpanExceeded, ContextOverflow, RequestRefused, and what the binding raises.
        """
        failures: list[str] = []
        busy = moved = 0
        while len(failures) < self._limits.attempts:
            seat = await self._present_seat(binding, request)
            try:
                tokens = await self._ask(seat, request)
            except BackendBusy as error:
                busy += 1
                if busy % self._limits.busy:
                    await self._pause(error.retry_after_seconds)
                    continue
                failures.append(_failure(seat, error))
            except (BackendFailed, MalformedAnswer) as error:
                moved += 1
                if moved <= self._limits.moves and await self._gone(binding, seat):
                    await binding.rebind(f"backend {seat.backend} was removed during a call")
                    continue
                failures.append(_failure(seat, error))
            else:
                self.health.answered(seat.backend)
                return TurnSample(tokens, seat)
            await self._after_failure(binding, seat, failures)
        raise NoBackendAnswers(
            f"{len(failures)} attempts failed; the last ones: {'; '.join(failures[-3:])}"
        )

    async def _present_seat(self, binding: SeatBinding, request: SampleRequest) -> Seat:
        """Return a seat whose backend takes calls with the weights that the seat names, and within the span."""
        seat = binding.seat
        found = {each.backend: each for each in await binding.registered()}
        present = found.get(seat.backend)
        if present is None or present.address != seat.address:
            seat = await binding.rebind(f"backend {seat.backend} takes no more calls")
        elif present.weights_version > seat.weights_version:
            seat = await binding.rebind(f"backend {seat.backend} has new weights")
        check_version(seat.weights_version, request)
        return seat

    async def _gone(self, binding: SeatBinding, seat: Seat) -> bool:
        return all(
            (each.backend, each.address) != (seat.backend, seat.address)
            for each in await binding.registered()
        )

    async def _after_failure(
        self, binding: SeatBinding, seat: Seat, failures: Sequence[str]
    ) -> None:
        self._probes.pop(seat.address, None)
        at = asyncio.get_running_loop().time()
        self.health.failed(seat.backend, failures[-1], at)
        if len(failures) < self._limits.attempts:
            await self._pause(pause_after(len(failures)))
            await binding.rebind(f"a call failed: {failures[-1]}")

    async def _ask(self, seat: Seat, request: SampleRequest) -> SampledTokens:
        backend = await self._backend(seat)
        dialect, options = DIALECTS[backend.dialect], request.options
        most = options.room(len(request.prompt_ids), backend.max_context_tokens)
        model = backend.model(seat.model, options.model)
        wire = dialect.request(request.prompt_ids, options, most, model)
        data = await self._client.generate(seat.address, wire.path, wire.body, most)
        asked = AskedFor(request.prompt_ids, most, request.vocabulary_size, options.need_logprobs)
        return dialect.read(data, asked)

    async def _backend(self, seat: Seat) -> ProbedBackend:
        """Return what is known about a backend; one that is new or failed is probed, once for all that wait for it."""
        probing = self._probes.get(seat.address)
        if probing is None:
            probing = asyncio.ensure_future(probe(self._client, seat.address, seat.dialect))
            self._probes[seat.address] = probing
        return await asyncio.shield(probing)


def check_version(version: int, request: SampleRequest) -> None:
    """Raise VersionSpanExceeded for weights that a rollout may not use beside those of its first token."""
    first, span = request.first_version, request.max_version_span
    if first is not None and span is not None and abs(version - first) > span:
        raise VersionSpanExceeded(
            f"weights {version} after tokens of weights {first}: max_version_span is {span}"
        )


def pause_after(failures: int) -> float:
    """Return the pause after so many failures in a row, in seconds."""
    return min(_MOST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1))


def _failure(seat: Seat, error: Exception) -> str:
    """Return a failed call in words, without the address of its backend."""
    name = seat.backend
    if is_made_name(name, seat.address):
        name = f"backend {seat.number}" if seat.number else "a backend"
    parts, text = urlsplit(seat.address), str(error)
    for part in (seat.address, parts.netloc, parts.hostname or ""):
        if "." in part or ":" in part:
            text = text.replace(part, name)
    return f"{name}: {text}"
