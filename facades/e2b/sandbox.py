"""Sandbox: a trajectory that was opened through this door, and the request that acts in it.

    async def start(request: HttpRequest) -> HttpResponse:
        sandbox = await sandbox_of(port, request)
        await sandbox.native.start({**sandbox.action, "exec": {…}})

Rules
1. A request names its sandbox by ``E2b-Sandbox-Id`` and shows its ``X-Access-Token``, or an API token.
2. What was chosen at its creation (`SandboxFacts`) is in the metadata of the trajectory. It never changes, so a
   process keeps it; whether the sandbox still runs is asked again after `FRESH_SECONDS`.
3. A sandbox that has ended or is paused does not answer: 502, as from E2B's proxy.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
from msgspec import UNSET

from contract.receipts import TrajectoryDetails
from domain.errors import InvalidRequest, NotFound
from domain.principals import Principal, Scope
from facades.e2b.access import ENVD, TRAFFIC, Holder, SandboxTokens, signature
from facades.e2b.errors import NO_RETRY
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpError, HttpRequest
from scheduler.runtime.gateway.native_calls import NativeCalls

#: SDKs choose what they send by it.
ENVD_VERSION: Final = "0.6.4"
#: Port of envd in the header ``E2b-Sandbox-Port``; every other one is a server in the sandbox.
ENVD_PORT: Final = "49983"
TASK: Final = "e2b"
#: A sandbox that was found to run is not asked for again so long.
FRESH_SECONDS: Final = 1.0
#: Member of a trajectory's metadata: what was chosen at its creation.
FACTS: Final = "e2b"
_KNOWN: Final = 10_000
#: Shortest time between two listings of all sandboxes, which a signature that no known one made asks for.
_LISTING_SECONDS: Final = 0.25
_ID: Final = re.compile(r"[a-z0-9]{1,64}")


class SandboxFacts(msgspec.Struct, omit_defaults=True):
    """What was chosen when a sandbox was created."""

    template: str
    metadata: dict[str, str] = {}
    envs: dict[str, str] = {}
    #: Name of the API token that made it.
    by: str = ""
    networks: tuple[str, ...] = ()
    #: Whether servers on its ports are reached without a token.
    public: bool = False
    #: Whether it is paused at its end.
    pauses: bool = False
    #: Seconds to its end after a request has resumed it; 0: requests do not.
    resume_seconds: float = 0.0

    def holder(self, project: str) -> Holder:
        """Return the owner that it acts for."""
        return Holder(project, self.by, self.networks)


@dataclass(frozen=True)
class OpenSandbox:
    """A running sandbox, and the calls of one request in it."""

    principal: Principal
    #: Its id, which is the name of its trajectory.
    name: str
    facts: SandboxFacts
    native: NativeCalls
    task: str = TASK

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata that its creator chose."""
        return self.facts.metadata

    @property
    def envs(self) -> dict[str, str]:
        """Environment variables of all its commands."""
        return self.facts.envs

    @property
    def action(self) -> dict[str, Any]:
        """Members of an action in it: task, trajectory, kind ``exec`` and cost."""
        cost = {"cpu": cores_of(self.facts)}
        return {"task": self.task, "trajectory": self.name, "kind": "exec", "cost": cost}


def cores_of(facts: SandboxFacts) -> float:
    """Return the cores of each command: ``tangram.cpu`` of its metadata, else 1."""
    return chosen_number(facts.metadata, "tangram.cpu", 1.0)


def chosen_number(metadata: dict[str, str], name: str, default: float) -> float:
    """Return a number of the metadata. Raises InvalidRequest."""
    text = metadata.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < 1e15:
        raise InvalidRequest(f"{text[:40]!r} is no number above 0", pointer=f"/metadata/{name}")
    return number


class _Signer(NamedTuple):
    """A sandbox whose token may have signed a URL."""

    name: str
    holder: Holder
    token: str
    public: bool


class Sandboxes:
    """The sandboxes that one web process knows."""

    def __init__(self, port: FacadePort) -> None:
        self._port = port
        #: Project and id → what was chosen, its task, and when it was last found to run.
        self._known: OrderedDict[tuple[str, str], tuple[SandboxFacts, str, float]] = OrderedDict()
        self._tokens: SandboxTokens | None = None
        #: All sandboxes of the last listing.
        self._signers: list[_Signer] = []
        self._listed_at = -1.0
        self._listing_now = asyncio.Lock()

    async def tokens(self) -> SandboxTokens:
        """Return the maker of tokens."""
        if self._tokens is None:
            self._tokens = SandboxTokens(await self._port.secret())
        return self._tokens

    async def of(self, request: HttpRequest, *, fresh: bool = False) -> OpenSandbox:
        """Return the sandbox of a request to envd. Raises HttpError 400, 401, 403, 502.

        ``fresh``: ask whether it runs now.
        """
        name = request.header(b"e2b-sandbox-id")
        if not _ID.fullmatch(name):
            raise HttpError(400, "no_sandbox", "the header E2b-Sandbox-Id names no sandbox")
        principal = await self.principal(request, name)
        return await self.running(request, principal, name, fresh=fresh)

    async def running(
        self, request: HttpRequest, principal: Principal, name: str, *, fresh: bool = False
    ) -> OpenSandbox:
        """Return a sandbox that answers requests. Raises HttpError 502."""
        native = self._port.native(request, principal)
        key = (await native.project(), name)
        known = self._known.get(key)
        if fresh or known is None or monotonic() - known[2] > FRESH_SECONDS:
            asked_at = monotonic()
            found = await _trajectory(native, name)
            facts = None if found is None else facts_of(found)
            if found is None or facts is None or found.state != "open":
                self.forget(*key)
                raise not_answering(name)
            if is_paused(found):
                if not facts.resume_seconds:
                    self.forget(*key)
                    raise not_answering(name)
                await native.renew(name, ttl_seconds=facts.resume_seconds, paused=False)
            known = self._known[key] = (facts, str(found.task), asked_at)
            self._known.move_to_end(key)
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return OpenSandbox(principal, name, known[0], native, known[1])

    def forget(self, project: str, name: str) -> None:
        """Ask again whether a sandbox runs, before its next request."""
        self._known.pop((project, name), None)

    async def signed(self, request: HttpRequest, operation: str) -> OpenSandbox:
        """Return the sandbox whose token signed the URL of a request. Raises HttpError 401, 403, 502."""
        query = request.query()
        given, expires = query.get("signature", ""), query.get("signature_expiration", "")
        if not given:
            raise HttpError(401, "no_signature", "missing signature query parameter")
        if expires and not (
            expires.isdigit()
            and len(expires) < 16
            and int(expires) >= datetime.now(UTC).timestamp()
        ):
            raise HttpError(401, "signature_expired", "signature is already expired")
        parts = (query.get("path", ""), operation, query.get("username", ""), expires)
        signer = await self._signer(lambda token: signature(token, *parts) == given)
        if signer is None:
            raise HttpError(401, "invalid_signature", "invalid signature")
        principal = _admitted(request, signer.holder)
        return await self.running(request, principal, signer.name)

    async def _signer(self, signed_by: Callable[[str], bool]) -> _Signer | None:
        """Return the sandbox that signed: one of the last listing, else of a new one."""
        since = monotonic()
        found = next((each for each in self._signers if signed_by(each.token)), None)
        if found is None:
            await self._list(since)
            found = next((each for each in self._signers if signed_by(each.token)), None)
        return found

    async def _list(self, since: float) -> None:
        """List all sandboxes, unless that was done after ``since``; a flood of requests shares listings."""
        async with self._listing_now:
            if self._listed_at >= since:
                return
            await asyncio.sleep(max(0.0, self._listed_at + _LISTING_SECONDS - monotonic()))
            listed_at, tokens = monotonic(), await self.tokens()
            signers = []
            for each in await self._port.trajectories():
                if (facts := facts_of(each)) is not None:
                    holder = facts.holder(each.project)
                    token = tokens.token(ENVD, each.id, holder)
                    signers.append(_Signer(each.id, holder, token, facts.public))
            self._signers, self._listed_at = signers, listed_at

    async def principal(
        self, request: HttpRequest, name: str, *, traffic: bool | None = None
    ) -> Principal:
        """Return the caller of a request to a sandbox. Raises HttpError 401, 403.

        ``traffic``: whether a traffic token suffices; by default to every port but that of envd.
        """
        tokens, shown = await self.tokens(), request.header(b"x-access-token")
        if traffic is None:
            traffic = request.header(b"e2b-sandbox-port") not in ("", ENVD_PORT)
        given = [(ENVD, shown)]
        if traffic:
            given.append((TRAFFIC, request.header(b"e2b-traffic-access-token")))
        for kind, token in given:
            holder = tokens.holder(kind, name, token) if token else None
            if holder is not None:
                return _admitted(request, holder)
        return await self._port.principal(request, shown or api_key(request), Scope.SUBMIT)

    async def public(self, request: HttpRequest, name: str) -> Principal | None:
        """Return the caller of a request without a token to the ports of a sandbox; None: it needs one."""
        for fresh in (False, True):
            if fresh:
                await self._list(monotonic())
            for each in self._signers:
                if each.name == name:
                    return _admitted(request, each.holder) if each.public else None
        return None


_of_port: WeakKeyDictionary[FacadePort, Sandboxes] = WeakKeyDictionary()


def sandboxes_of(port: FacadePort) -> Sandboxes:
    """Return the sandboxes that the gateway behind ``port`` knows."""
    found = _of_port.get(port)
    if found is None:
        found = _of_port[port] = Sandboxes(port)
    return found


async def sandbox_of(port: FacadePort, request: HttpRequest, *, fresh: bool = False) -> OpenSandbox:
    """Return the sandbox of a request to envd. Raises HttpError 400, 401, 403, 502."""
    return await sandboxes_of(port).of(request, fresh=fresh)


async def signed_sandbox(port: FacadePort, request: HttpRequest, operation: str) -> OpenSandbox:
    """Return the sandbox of a request to ``/files``: by its token, else by the signature of its URL.

    ``operation``: ``read`` or ``write``. Raises HttpError 401, 403, 502.
    """
    sandboxes = sandboxes_of(port)
    shown = request.header(b"x-access-token") or api_key(request)
    if shown and request.header(b"e2b-sandbox-id"):
        return await sandboxes.of(request)
    return await sandboxes.signed(request, operation)


def facts_of(found: TrajectoryDetails) -> SandboxFacts | None:
    """Return what was chosen for a sandbox; None for a trajectory that is none."""
    metadata = {} if found.metadata is UNSET else found.metadata
    try:
        return msgspec.convert(metadata.get(FACTS), SandboxFacts)
    except msgspec.ValidationError:
        return None


def is_paused(found: TrajectoryDetails) -> bool:
    """Return whether a sandbox is paused."""
    return found.paused_at is not UNSET


def api_key(request: HttpRequest) -> str:
    """Return the API token that a request shows: ``X-API-Key``, else a bearer token; or the empty string."""
    if key := request.header(b"x-api-key"):
        return key.strip()
    kind, _, token = request.header(b"authorization").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def not_answering(name: str) -> HttpError:
    """Return the error of E2B's proxy for a sandbox that does not run."""
    return HttpError(502, "sandbox_not_found", f"the sandbox {name} was not found", **NO_RETRY)


async def _trajectory(native: NativeCalls, name: str) -> TrajectoryDetails | None:
    try:
        return await native.trajectory(name)
    except NotFound:
        return None


def _admitted(request: HttpRequest, holder: Holder) -> Principal:
    principal = holder.principal
    if not principal.admits(request.address):
        where = request.address or "an unknown address"
        raise HttpError(403, "address_not_allowed", f"this token may not be used from {where}")
    return principal
