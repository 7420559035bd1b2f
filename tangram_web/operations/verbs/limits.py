"""Verbs on pools and on counted resources: policies, limits, quotas, shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.http import HttpRequest

from domain.errors import InvalidRequest
from tangram_web.accounts.models import Role
from tangram_web.audit.services import actor_at
from tangram_web.operations import forms
from tangram_web.operations.live_counts import effect_on_pool, live_rows, live_that
from tangram_web.operations.shell_lines import applied, fixed, given
from tangram_web.operations.verb import PAUSED, Effect, Target, Values, Verb
from tangram_web.pools import services


def _of_pool(says: str) -> Any:
    return lambda target, _: effect_on_pool(target.name, says)


def _pool(**change: Any) -> Any:
    def do(request: HttpRequest, target: Target, values: Values) -> None:
        services.pool_update(actor=actor_at(request), name=target.name, **{**change, **values})

    return do


def _of_limit(member: str, says: str) -> Any:
    """Return the effect of a lower limit: actions that need more would wait forever."""

    def effect(target: Target, values: Values) -> Effect:
        limit, name = values.get(member), target.name
        counts = live_that(lambda row: name in row.cost)
        if limit is None:
            return Effect(counts, says)
        stranded = sum(
            row.state == "queued" and name in row.cost and _least(row.cost[name]) > limit
            for row in live_rows()
        )
        warning = f"{stranded} waiting actions need more than {limit:g} and would wait forever"
        return Effect({**counts, "stranded": stranded}, says, warning if stranded else "")

    return effect


def _least(counts: Any) -> float:
    if isinstance(counts, dict):
        return float(counts.get("min", 0))
    return float(min(counts)) if isinstance(counts, list) else float(counts)


def _limit(request: HttpRequest, target: Target, values: Values) -> None:
    actor, limit = actor_at(request), values["limit_units"]
    services.resource_set(actor=actor, name=target.name, limit_units=limit)


# Quotas


def changed_quotas(target: Target, values: Values) -> dict[str, Any]:
    """Return the quotas with the chosen one changed."""
    quotas = [dict(each) for each in target.now.get("quotas", ())]
    for each in quotas:
        if forms.period_of(each) == values.get("period"):
            each["units"] = values["units"]
    return {"quotas": quotas}


def _quota(request: HttpRequest, target: Target, values: Values) -> None:
    services.resource_set(
        actor=actor_at(request), name=target.name, **changed_quotas(target, values)
    )


# Shares


def _with_share(shares: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """Return the shares with that of the chosen project changed or removed."""
    others = {name: part for name, part in shares.items() if name != values.get("project")}
    if values.get("nominal_units") is None:
        return others if "project" in values else dict(shares)
    part = {name: values[name] for name in forms.PARTS if values.get(name) is not None}
    return {**others, values["project"]: part}


def changed_shares(target: Target, values: Values) -> dict[str, Any]:
    """Return the shares of a resource with the chosen one changed."""
    return {"shares": _with_share(target.now.get("shares", {}), values)}


def changed_pool_shares(target: Target, values: Values) -> dict[str, Any]:
    """Return the shares of a pool with the chosen one changed."""
    shares, kind = dict(target.now.get("shares", {})), values.get("resource", "cpu")
    shares[kind] = _with_share(shares.get(kind, {}), values)
    return {"shares": {name: parts for name, parts in shares.items() if parts}}


def _share_resource(request: HttpRequest, target: Target, values: Values) -> None:
    actor = actor_at(request)
    services.resource_set(actor=actor, name=target.name, **changed_shares(target, values))


def _share_pool(request: HttpRequest, target: Target, values: Values) -> None:
    shares = changed_pool_shares(target, values)
    try:
        services.pool_update(actor=actor_at(request), name=target.name, **shares)
    except InvalidRequest as error:
        raise InvalidRequest(f"the shares are invalid: {error}", pointer=error.pointer) from error


_SHARED: Final = (
    "Projects below their nominal share are granted before projects that borrow; grants are kept."
)


def _of_resource_share(target: Target, values: Values) -> Effect:
    project, name = values.get("project"), target.name
    counts = live_that(lambda row: name in row.cost and project in (None, row.project))
    parts = changed_shares(target, values)["shares"].values()
    total, limit = sum(part["nominal_units"] for part in parts), target.now["limit_units"]
    warning = (
        f"the nominal shares add up to {total} of {limit}: not all projects can use theirs at once"
    )
    return Effect(counts, _SHARED, warning if total > limit else "")


ON_LIMITS: Final = (
    Verb(kind="pool", name="pause", title="Pause", role=Role.ADMIN, undo="resume", heavy=True,
         effect=_of_pool(PAUSED), do=_pool(paused=True),
         line=applied("Pool", fixed(paused=True))),
    Verb(kind="pool", name="resume", title="Resume", role=Role.ADMIN, undo="pause",
         effect=_of_pool("Waiting actions are granted again."), do=_pool(paused=False),
         line=applied("Pool", fixed(paused=False))),
    Verb(kind="pool", name="policy", title="Switch policy", role=Role.ADMIN, undo="policy",
         form=forms.PolicyForm, do=_pool(), line=applied("Pool", given("policy")),
         effect=_of_pool("Running actions keep their units; the policy decides the next grants.")),
    Verb(kind="pool", name="share", title="Change a share", role=Role.ADMIN, undo="share",
         form=forms.PoolShareForm, effect=_of_pool(f"{_SHARED} The counts are of all projects."), do=_share_pool,
         line=applied("Pool", changed_pool_shares)),
    Verb(kind="resource", name="limit", title="Change the limit", role=Role.ADMIN, undo="limit",
         form=forms.LimitForm, do=_limit, line=applied("Resource", given("limit_units")),
         effect=_of_limit("limit_units", "Grants are kept; the new limit applies to later ones.")),
    Verb(kind="resource", name="quota", title="Change a quota", role=Role.ADMIN, undo="quota",
         form=forms.QuotaForm, do=_quota, line=applied("Resource", changed_quotas),
         effect=_of_limit("units", "Grants of the period still count.")),
    Verb(kind="resource", name="share", title="Change a share", role=Role.ADMIN, undo="share",
         form=forms.ShareForm, effect=_of_resource_share, do=_share_resource,
         line=applied("Resource", changed_shares)),
)  # fmt: skip
