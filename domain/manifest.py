"""Specs of resources and shares, in units, as REST and files define them.

The JSON Schema of each kind is generated from these structs. `domain.inventory.Config` holds the
same in milli-units, for the scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar
from zoneinfo import available_timezones

import msgspec
from msgspec import Meta

from domain.apis import ApiConfig, check_api, check_cache
from domain.errors import InvalidRequest
from domain.fleets import FLEET
from domain.inventory import Config
from domain.limits import Breaker, Limits, Quota, Retries, Share
from domain.resources import MAX_UNITS, MILLI, units

T = TypeVar("T")
Units = Annotated[float, Meta(gt=0, le=MAX_UNITS)]
#: Longest window of a quota: 31 days.
MAX_WINDOW_SECONDS = 31 * 86_400.0
#: A kind of resource of nodes.
_KIND = re.compile(r"[a-z][a-z0-9_-]*")
_PATH = re.compile(r" - at `(?P<path>[^`]*)`$")
_MEMBER = re.compile(r"(?:unknown|missing required) field `(?P<name>.*)`$")


class QuotaSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """At most ``units`` in any window of ``window_seconds``, or on a calendar day of ``zone``."""

    units: Units
    window_seconds: Annotated[float, Meta(gt=0, le=MAX_WINDOW_SECONDS)] | None = None
    zone: str | None = None
    margin_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0


class ShareSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A project's share of a resource; without a limit everything may be borrowed or lent."""

    nominal_units: Annotated[int, Meta(ge=0, le=MAX_UNITS)]
    borrow_units: Annotated[int, Meta(ge=0, le=MAX_UNITS)] | None = None
    lend_units: Annotated[int, Meta(ge=0, le=MAX_UNITS)] | None = None


#: Shares of the nodes of a pool: kind of resource → project → its share.
PoolShares = dict[str, dict[str, ShareSpec]]
#: Prepared environments of each node of a pool: image → number; ``""`` is no image.
WarmImages = dict[Annotated[str, Meta(max_length=256)], Annotated[int, Meta(ge=0, le=1000)]]


class ResourceSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A cluster-wide resource: its concurrency limit, its quotas, and the API behind it."""

    #: Units that may be held at once; 0 stops all grants.
    limit_units: Annotated[int, Meta(ge=0, le=MAX_UNITS)]
    quotas: tuple[QuotaSpec, ...] = ()
    #: Lower bound of adaptive concurrency, whose upper bound is ``limit_units``.
    learn_from_units: Annotated[int, Meta(ge=1, le=MAX_UNITS)] | None = None
    breaker: Breaker = Breaker()
    retries: Retries = Retries()
    api: ApiConfig | None = None
    #: Project → its share; other projects have a nominal share of 0.
    shares: dict[str, ShareSpec] = {}

    @property
    def parts(self) -> dict[str, Share]:
        """The shares in milli-units."""
        return parts_of(self.shares)

    @property
    def limits(self) -> Limits:
        """The limits in milli-units."""
        return Limits(
            quotas=tuple(_quota(each) for each in self.quotas),
            least=(self.learn_from_units or 0) * MILLI,
            breaker=self.breaker,
            retries=self.retries,
        )


def resource_spec(config: Config, name: str) -> ResourceSpec:
    """Return the spec of a resource of ``config``."""
    limits = config.limits.get(name, Limits())
    return ResourceSpec(
        limit_units=config.resources[name] // MILLI,
        quotas=tuple(_quota_spec(each) for each in limits.quotas),
        learn_from_units=limits.least // MILLI or None,
        breaker=limits.breaker,
        retries=limits.retries,
        api=config.apis.get(name),
        shares=share_specs(config.shares.get(name, {})),
    )


def parts_of(shares: Mapping[str, ShareSpec]) -> dict[str, Share]:
    """Return shares of projects in milli-units."""
    return {project: _share(spec) for project, spec in shares.items()}


def share_specs(parts: Mapping[str, Share]) -> dict[str, ShareSpec]:
    """Return the specs of shares of projects."""
    return {project: _share_spec(each) for project, each in parts.items()}


def read_pool_shares(data: Any) -> PoolShares:
    """Return plain ``data`` as shares of a pool. Raises InvalidRequest with a JSON Pointer."""
    shares = read(PoolShares, data, "/shares")
    check_pool_shares(shares)
    return shares


def check_pool_shares(shares: PoolShares) -> None:
    """Raise InvalidRequest for a kind of resource that cannot have shares."""
    for kind in shares:
        if kind == "memory":
            raise InvalidRequest(
                "memory belongs to environments for their whole life: it has no shares",
                pointer="/shares/memory",
            )
        if not _KIND.fullmatch(kind):
            raise InvalidRequest(
                f"{kind!r} is no kind of resource that nodes have, as cpu and gpu are",
                pointer="/shares",
            )


def _share(spec: ShareSpec) -> Share:
    def milli(count: int | None) -> int | None:
        return None if count is None else count * MILLI

    return Share(spec.nominal_units * MILLI, milli(spec.borrow_units), milli(spec.lend_units))


def _share_spec(share: Share) -> ShareSpec:
    def count(milli: int | None) -> int | None:
        return None if milli is None else milli // MILLI

    return ShareSpec(share.nominal // MILLI, count(share.borrow), count(share.lend))


def _quota(spec: QuotaSpec) -> Quota:
    amount = round(spec.units * MILLI)
    if spec.window_seconds is None:
        return Quota(amount, zone=spec.zone or "UTC")
    return Quota(amount, spec.window_seconds, margin_seconds=spec.margin_seconds)


def _quota_spec(quota: Quota) -> QuotaSpec:
    if quota.window_seconds:
        return QuotaSpec(
            units(quota.amount), quota.window_seconds, margin_seconds=quota.margin_seconds
        )
    return QuotaSpec(units(quota.amount), zone=quota.zone)


def check_resource(name: str, spec: ResourceSpec) -> None:
    """Raise InvalidRequest, naming the member, for rules beyond the types."""
    if name.startswith(FLEET):
        raise InvalidRequest(
            "the slots of its workers are the limit of a fleet: declare a Fleet", pointer="/name"
        )
    if not name.startswith("api:"):
        for member in ("quotas", "learn_from_units", "api"):
            if getattr(spec, member):
                raise InvalidRequest("only resources api:… have this", pointer=f"/{member}")
    _check_quotas(spec.quotas)
    if spec.learn_from_units is not None and spec.learn_from_units > spec.limit_units:
        raise InvalidRequest("this is above limit_units", pointer="/learn_from_units")
    _check_recovery(spec.breaker, spec.retries)
    if spec.api is not None:
        try:
            check_api(spec.api)
            if spec.api.cache is not None:
                check_cache(spec.api.cache)
        except InvalidRequest as error:
            raise InvalidRequest(str(error), pointer=f"/api{error.pointer}") from None


def _check_quotas(quotas: tuple[QuotaSpec, ...]) -> None:
    for number, quota in enumerate(quotas):
        pointer = f"/quotas/{number}"
        if quota.window_seconds is not None and quota.zone is not None:
            raise InvalidRequest("give window_seconds or zone, not both", pointer=pointer)
        if quota.zone is not None and quota.zone not in available_timezones():
            raise InvalidRequest(
                f"{quota.zone!r} is not a time zone, as Europe/Berlin is", pointer=f"{pointer}/zone"
            )
        if quota.window_seconds is None and quota.margin_seconds:
            raise InvalidRequest("a day has no margin", pointer=f"{pointer}/margin_seconds")
    periods = [(quota.window_seconds, quota.zone) for quota in quotas]
    if len(set(periods)) < len(periods):
        raise InvalidRequest("two quotas have the same period", pointer="/quotas")


def _check_recovery(breaker: Breaker, retries: Retries) -> None:
    if not 1 <= breaker.failures <= MAX_UNITS:
        raise InvalidRequest(f"give 1 to {MAX_UNITS}", pointer="/breaker/failures")
    if not 0 < breaker.cooldown_seconds <= breaker.longest_seconds <= 86_400:
        raise InvalidRequest(
            "give 0 < cooldown_seconds <= longest_seconds <= 86400",
            pointer="/breaker/cooldown_seconds",
        )
    if not 1 <= retries.attempts <= 100:
        raise InvalidRequest("give 1 to 100 attempts", pointer="/retries/attempts")
    if not 0 <= retries.ratio <= 10:
        raise InvalidRequest("give 0 to 10", pointer="/retries/ratio")
    if not 0 <= retries.burst <= 100_000:
        raise InvalidRequest("give 0 to 100000", pointer="/retries/burst")


def read(kind: type[T], data: Any, pointer: str = "") -> T:
    """Return plain ``data`` as ``kind``. Raises InvalidRequest with a JSON Pointer."""
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        text, where = located(str(error))
        raise InvalidRequest(text, pointer=pointer + where) from None


def located(error: str) -> tuple[str, str]:
    """Return the text of an error of msgspec, and the JSON Pointer to the member that it is about.

    A member that is unknown or missing is named by the text alone.
    """
    place = _PATH.search(error)
    text = _PATH.sub("", error)
    path = place["path"] if place else "$"
    pointer = _pointer_of(path)
    member = _MEMBER.search(text)
    return text, pointer + _escaped(member["name"]) if member and "[...]" not in path else pointer


def _pointer_of(path: str) -> str:
    """Return msgspec's ``$.quotas[0].units`` as a JSON Pointer, up to the first unknown key."""
    pointer = ""
    for name, index in re.findall(r"\.([^.\[\]]+)|\[([^\]]*)\]", path.removeprefix("$")):
        if index == "...":
            break
        pointer += _escaped(name or index)
    return pointer


def _escaped(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")
