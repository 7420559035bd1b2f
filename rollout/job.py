"""Job: one rollout as its handler and its agent's tools see it. A protocol: handler processes and tests implement it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from domain.rollouts import Rollout, Stage
from rollout.core.records import RolloutRequest
from rollout.ports import ActionEnd, Channel, FleetAnswer, Record, Seat

#: Answers a question from outside: its method and body → JSON values. Raises InvalidRequest, CapacityError.
Answering = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


class CallRefused(Exception):
    """Tangram refuses a call of the handler, and says what is wrong with it."""


class Job(Protocol):
    """One rollout."""

    @property
    def rollout(self) -> Rollout:
        """The rollout."""

    @property
    def attempt(self) -> int:
        """Its present attempt."""

    @property
    def request(self) -> RolloutRequest:
        """What the trainer asked for."""

    @property
    def stage(self) -> Stage:
        """Present stage."""

    @property
    def history(self) -> Sequence[Record]:
        """Records of this generation, in their order: turns, calls, observations, artefacts, ends of stages."""

    def value(self, stage: Stage) -> Mapping[str, Any]:
        """Return what INIT or RUN returned; empty before its end."""

    async def execute(self, members: Mapping[str, Any], *, name: str = "") -> ActionEnd:
        """Run an action in the stage's trajectory; ``members`` as in ``POST /actions``.

        ``name``: names the call in its stage, else its number does. Raises CallRefused.
        """

    async def put(self, path: str, content: bytes) -> None:
        """Write a file into the stage's environment. Raises CallRefused."""

    async def get(self, path: str) -> bytes:
        """Read a file of the stage's environment. Raises CallRefused."""

    async def open_session(self, name: str, members: Mapping[str, Any] | None = None) -> None:
        """Open a session of the stage's environment, for actions with ``exec.session``; one that is open is used.

        ``members`` as in ``POST /trajectories/{id}/sessions``. Raises CallRefused.
        """

    async def connect(self, port: int) -> Channel:
        """Connect to a server in the stage's environment. Raises CallRefused."""

    def serve(self, answer: Answering) -> None:
        """Answer questions from outside until the present method ends: calls of an agent that is not ours.

        Until then, and between a crash and the handler that continues, the asking side is asked to wait.
        """

    async def agent_access(self) -> Mapping[str, str]:
        """Return ``trajectory`` and ``token`` with which what runs in the stage's environment calls `serve` over HTTP."""

    def seat(self) -> Seat | None:
        """Return the seat of the language model that the lease of RUN took."""

    async def backends(self, *, wait: bool = True) -> Sequence[Seat]:
        """Return the healthy backends of the rollout's pool. ``wait``: for the first one, which is not counted."""

    async def engine(self) -> str:
        """Return the engine of the rollout's fleet; empty: it is not declared any more. Raises CallRefused."""

    async def generate(self, path: str, body: Mapping[str, Any]) -> FleetAnswer:
        """Make a generation of the rollout's fleet; waiting for it is not counted.

        ``path``, ``body``: a request in the protocol of the fleet's engine, without ``model``. Raises CallRefused.
        """

    async def turn(self, record: Record) -> None:
        """Store a turn, as `rollout.tokens.turn_records.turn_record` makes it; returns when it is on disk."""

    async def artefact(
        self, name: str, content: bytes, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Store a file or patch with the rollout; returns when it is on disk."""
