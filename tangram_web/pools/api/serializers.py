"""Request bodies and responses of the configuration over REST."""

from __future__ import annotations

from typing import Any

import msgspec
from django.conf import settings
from rest_framework import serializers

from domain.confinement import OFF, REQUIRED
from domain.engine_profiles import MODELLED
from domain.fleets import FleetEngine, PlacementName, TransferAdapter
from domain.inventory import NODE_DEAD_SECONDS, NODE_GRACE_SECONDS
from domain.policies import DEFAULT_POLICY
from domain.principals import Scope
from domain.project_limits import ProjectBounds
from domain.resources import MAX_UNITS
from tangram_web.pools.models import (
    LEAST_SILENCE_SECONDS,
    MOST_SILENCE_SECONDS,
    NAME_LENGTH,
    NAME_PATTERN,
    RESOURCE_PATTERN,
    Project,
)
from tangram_web.pools.secrets import masked_spec
from tangram_web.pools.selectors import bounds_of, fleet_of, spec_of
from tangram_web.pools.tokens import DEFAULT_DAYS, MOST_DAYS, MOST_NETWORKS
from tangram_web.pools.visibility import own_entries_below, visible_struct

_SCOPES = [scope.value for scope in Scope]


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses unknown members of the body by name: a misspelt field must not be ignored."""

    def to_internal_value(self, data: Any) -> Any:
        """Check the names before the values."""
        if isinstance(data, dict):
            unknown = sorted(set(data) - set(self.fields))
            if unknown:
                known = ", ".join(sorted(self.fields))
                raise serializers.ValidationError(
                    {_escaped(name): [f"unknown field; known are {known}"] for name in unknown}
                )
        return super().to_internal_value(data)


def _escaped(name: str) -> str:
    """Return ``name`` as part of a JSON Pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _plain(shown: dict[str, Any]) -> dict[str, Any]:
    """Return structs as dictionaries with all their members."""
    plain: dict[str, Any] = msgspec.to_builtins(
        {name: _whole(value) for name, value in shown.items()}
    )
    return plain


def _whole(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, tuple) else value


class _Name(serializers.RegexField):
    """A name; surrounding spaces are not trimmed, so they make it invalid."""

    def __init__(self, pattern: str = NAME_PATTERN, **kwargs: Any) -> None:
        # JSON Schema knows no \Z; what $ lets pass here, a last line break, the services refuse.
        documented = pattern.replace(r"\Z", "$")
        super().__init__(documented, max_length=NAME_LENGTH, trim_whitespace=False, **kwargs)


_SANDBOX: Any = (REQUIRED, OFF)
_SANDBOX_HELP = (
    "required: nodes that cannot run commands in a sandbox get no actions; off: they do."
)
_HOST_NETWORK_HELP = "Environments may ask for network: host."
_EGRESS_HELP = (
    "What environments with network: egress reach: hosts (packages.test, *.example.org, example.org:8443),"
    " connections, bytes, seconds."
)
_WARM_HELP = (
    "Prepared environments that each node keeps: image → number; an empty name is no image. They are replaced"
    " as a whole."
)
_LIMITS_HELP = (
    "In place of the limits of the installation: queued_actions, queued_bytes, submissions_per_second,"
    " burst_actions. They are replaced as a whole."
)
_MOVE_HELP = "Environments of idle trajectories leave a node that lets its trajectories finish."
_REBALANCE_HELP = "An action that waits for its node moves with its environment to a node that has room; needs move_environments."
_SHARES_HELP = "Kind of resource (cpu, gpu) → project: nominal_units, borrow_units, lend_units."
_SILENCE: Any = {"min_value": LEAST_SILENCE_SECONDS, "max_value": MOST_SILENCE_SECONDS}


class PoolBody(StrictSerializer):
    """A pool to create."""

    name = _Name()
    policy = serializers.CharField(max_length=NAME_LENGTH, default=DEFAULT_POLICY)
    paused = serializers.BooleanField(default=False)
    light_by_default = serializers.BooleanField(default=True)
    node_grace_seconds = serializers.FloatField(default=NODE_GRACE_SECONDS, **_SILENCE)
    node_dead_seconds = serializers.FloatField(default=NODE_DEAD_SECONDS, **_SILENCE)
    shares = serializers.DictField(
        child=serializers.DictField(child=serializers.DictField()), required=False, help_text=_SHARES_HELP,
    )  # fmt: skip
    sandbox = serializers.ChoiceField(choices=_SANDBOX, default=REQUIRED, help_text=_SANDBOX_HELP)
    host_network = serializers.BooleanField(default=False, help_text=_HOST_NETWORK_HELP)
    egress = serializers.DictField(required=False, help_text=_EGRESS_HELP)
    warm = serializers.DictField(required=False, help_text=_WARM_HELP)
    move_environments = serializers.BooleanField(default=True, help_text=_MOVE_HELP)
    rebalance_environments = serializers.BooleanField(default=True, help_text=_REBALANCE_HELP)


class PoolPatch(StrictSerializer):
    """Changes of a pool."""

    policy = serializers.CharField(max_length=NAME_LENGTH, required=False)
    paused = serializers.BooleanField(required=False)
    light_by_default = serializers.BooleanField(required=False)
    node_grace_seconds = serializers.FloatField(required=False, **_SILENCE)
    node_dead_seconds = serializers.FloatField(required=False, **_SILENCE)
    shares = serializers.DictField(
        child=serializers.DictField(child=serializers.DictField()), required=False, help_text=_SHARES_HELP,
    )  # fmt: skip
    sandbox = serializers.ChoiceField(choices=_SANDBOX, required=False, help_text=_SANDBOX_HELP)
    host_network = serializers.BooleanField(required=False, help_text=_HOST_NETWORK_HELP)
    egress = serializers.DictField(required=False, help_text=_EGRESS_HELP)
    warm = serializers.DictField(required=False, help_text=_WARM_HELP)
    move_environments = serializers.BooleanField(required=False, help_text=_MOVE_HELP)
    rebalance_environments = serializers.BooleanField(required=False, help_text=_REBALANCE_HELP)


class PoolView(serializers.Serializer[Any]):
    """A pool, with the shares that the caller may see."""

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """Return the members; ``projects`` of the context limits the shares."""
        shown: dict[str, Any] = super().to_representation(instance)
        shown["shares"] = own_entries_below(shown["shares"], self.context.get("projects"))
        return shown

    name = serializers.CharField()
    policy = serializers.CharField()
    paused = serializers.BooleanField()
    light_by_default = serializers.BooleanField()
    node_grace_seconds = serializers.FloatField()
    node_dead_seconds = serializers.FloatField()
    shares = serializers.DictField(child=serializers.DictField(child=serializers.DictField()))
    sandbox = serializers.CharField(help_text=_SANDBOX_HELP)
    host_network = serializers.BooleanField(help_text=_HOST_NETWORK_HELP)
    egress = serializers.DictField(help_text=_EGRESS_HELP)
    warm = serializers.DictField(help_text=_WARM_HELP)
    move_environments = serializers.BooleanField(help_text=_MOVE_HELP)
    rebalance_environments = serializers.BooleanField(help_text=_REBALANCE_HELP)
    created_at = serializers.DateTimeField()


class ProjectBody(StrictSerializer):
    """A project to create."""

    name = _Name()
    default_pool = _Name(default="default")
    limits = serializers.DictField(required=False, help_text=_LIMITS_HELP)


class ProjectPatch(StrictSerializer):
    """Changes of a project."""

    default_pool = _Name(required=False)
    limits = serializers.DictField(required=False, help_text=_LIMITS_HELP)


class ProjectView(serializers.Serializer[Any]):
    """A project, with its own limits and those that hold for it."""

    name = serializers.CharField()
    default_pool = serializers.CharField(source="default_pool_id")
    limits = serializers.DictField(help_text=_LIMITS_HELP)
    limits_in_force = serializers.SerializerMethodField(
        help_text="Its own limits, and those of the installation where it has none."
    )
    created_at = serializers.DateTimeField()

    def get_limits_in_force(self, project: Project) -> dict[str, float]:
        """Return the limits of the project in this process."""
        limits = bounds_of(project).over(settings.TANGRAM_PROJECT_LIMITS)
        return {name: getattr(limits, name) for name in ProjectBounds.__struct_fields__}


class ResourceLimit(StrictSerializer):
    """The limit of a cluster-wide resource."""

    limit_units = serializers.IntegerField(min_value=0, max_value=MAX_UNITS)
    quotas = serializers.ListField(
        child=serializers.DictField(),
        required=False,
        help_text="units, and window_seconds (with margin_seconds) or the zone of a calendar day.",
    )
    learn_from_units = serializers.IntegerField(
        required=False,
        allow_null=True,
        help_text="Learn how many calls may be open at once, starting with this number.",
    )
    breaker = serializers.DictField(
        required=False, help_text="failures, cooldown_seconds, longest_seconds."
    )
    retries = serializers.DictField(required=False, help_text="attempts, ratio, burst.")
    api = serializers.DictField(
        required=False,
        allow_null=True,
        help_text="base_url, methods, paths, headers, secret_header, secret_prefix, secret (its"
        " name), timeout_seconds, response_limit_bytes, reach.",
    )
    shares = serializers.DictField(
        child=serializers.DictField(),
        required=False,
        help_text="Project: nominal_units, borrow_units, lend_units.",
    )


class ResourceBody(ResourceLimit):
    """A cluster-wide resource to add or to change."""

    name = _Name(RESOURCE_PATTERN)


class ResourceView(serializers.Serializer[Any]):
    """A cluster-wide resource."""

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """Return the declaration with defaults, as ``projects`` of the context see it."""
        spec = masked_spec(visible_struct(spec_of(instance), self.context.get("projects")))
        shown = {field: getattr(spec, field) for field in spec.__struct_fields__}
        created_at = serializers.DateTimeField().to_representation(instance.created_at)
        return {"name": instance.name, **_plain(shown), "created_at": created_at}

    name = serializers.CharField()
    limit_units = serializers.IntegerField()
    quotas = serializers.ListField(child=serializers.DictField())
    learn_from_units = serializers.IntegerField(allow_null=True)
    breaker = serializers.DictField()
    retries = serializers.DictField()
    api = serializers.DictField(allow_null=True)
    shares = serializers.DictField(child=serializers.DictField())
    created_at = serializers.DateTimeField()


class FleetBody(StrictSerializer):
    """The declaration of a fleet."""

    engine = serializers.ChoiceField(choices=[engine.value for engine in FleetEngine])
    source = serializers.CharField(  # type: ignore[assignment]  # a member of this name
        required=False, allow_blank=True, help_text="Model of its workers; empty: its own name."
    )
    workers = serializers.ListField(
        child=serializers.DictField(),
        required=False,
        help_text="Servers that run elsewhere: name, url (without /v1), slots, degree, drained.",
    )
    gpus = serializers.IntegerField(
        required=False, help_text="GPUs of the pool for workers of our own."
    )
    degrees = serializers.ListField(
        child=serializers.IntegerField(),
        required=False,
        help_text="GPUs that a worker of our own may have: 1, 2, 4, 8.",
    )
    pool = _Name(required=False)
    slots = serializers.IntegerField(
        required=False, help_text="Generations at once, for each GPU of workers of our own."
    )
    command = serializers.ListField(
        child=serializers.CharField(allow_blank=True),
        required=False,
        help_text="Engine of workers of our own, with {port}; empty: the usual one of its kind.",
    )
    python = serializers.CharField(
        required=False, allow_blank=True, help_text="Interpreter with torch for engine torch."
    )
    env = serializers.DictField(
        child=serializers.CharField(allow_blank=True),
        required=False,
        help_text="Variables of that engine; they are stored sealed.",
    )
    start_seconds = serializers.FloatField(
        required=False, help_text="An engine that does not answer for so long is reported."
    )
    policy = serializers.ChoiceField(
        choices=[policy.value for policy in PlacementName], required=False
    )
    transfer = serializers.ChoiceField(
        choices=[each.value for each in TransferAdapter],
        required=False,
        help_text="How caches reach other workers; empty: as the workers say.",
    )
    predictor = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text="Predictor of lengths: boosted (the default), history, or an installed one.",
    )
    profile = serializers.DictField(
        required=False,
        allow_null=True,
        help_text="Measured seconds per token by degree, batch and context, which placement decides from.",
    )
    modelled = serializers.ChoiceField(
        choices=["", *MODELLED],
        required=False,
        help_text="Model whose modelled times stand in for a profile.",
    )


class NewFleetBody(FleetBody):
    """A fleet to add."""

    name = _Name()


class DeclaredFleetView(serializers.Serializer[Any]):
    """A fleet."""

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """Return the declaration with defaults, as ``projects`` of the context see it."""
        spec = masked_spec(visible_struct(fleet_of(instance), self.context.get("projects")))
        shown = {field: getattr(spec, field) for field in spec.__struct_fields__}
        created_at = serializers.DateTimeField().to_representation(instance.created_at)
        return {"name": instance.name, **_plain(shown), "created_at": created_at}

    name = serializers.CharField()
    engine = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]  # a member of this name
    workers = serializers.ListField(child=serializers.DictField())
    gpus = serializers.IntegerField()
    degrees = serializers.ListField(child=serializers.IntegerField())
    pool = serializers.CharField()
    slots = serializers.IntegerField()
    command = serializers.ListField(child=serializers.CharField())
    python = serializers.CharField()
    env = serializers.DictField(child=serializers.CharField())
    start_seconds = serializers.FloatField()
    policy = serializers.CharField()
    transfer = serializers.CharField()
    created_at = serializers.DateTimeField()


class TokenBody(StrictSerializer):
    """A token to create."""

    name = serializers.CharField(
        max_length=NAME_LENGTH, help_text="A name to recognise the token by."
    )
    project = _Name(allow_null=True, required=False)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=_SCOPES), min_length=1, max_length=len(_SCOPES)
    )
    expires_at = serializers.DateTimeField(
        allow_null=True,
        required=False,
        help_text="Omitted: after 90 days. null: never, for callers of all projects.",
    )
    networks = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        max_length=MOST_NETWORKS,
        help_text="Addresses and networks (CIDR) from which it may be used; none: all.",
    )


class TokenRenewal(StrictSerializer):
    """A new end of a token."""

    days = serializers.IntegerField(default=DEFAULT_DAYS, min_value=1, max_value=MOST_DAYS)


class TokenView(serializers.Serializer[Any]):
    """A token without its secret."""

    id = serializers.CharField(source="public_id")
    name = serializers.CharField()
    project = serializers.CharField(source="project_id", allow_null=True)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=_SCOPES))
    created_at = serializers.DateTimeField(source="created")
    expires_at = serializers.DateTimeField(source="expiry", allow_null=True)
    networks = serializers.ListField(child=serializers.CharField())
    last_used_at = serializers.DateTimeField(allow_null=True)
    last_used_from = serializers.CharField(help_text="Address of the client at its last use.")
    revoked_at = serializers.DateTimeField(allow_null=True)


class NewTokenView(TokenView):
    """A new token; only this response contains ``token`` and ``forms``."""

    token = serializers.CharField()
    forms = serializers.DictField(
        child=serializers.CharField(),
        help_text="The same token as clients of other protocols accept it, by protocol: `e2b`.",
    )
