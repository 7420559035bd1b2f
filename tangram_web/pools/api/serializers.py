"""What the configuration looks like over REST; bodies and answers apart."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from domain.access import Scope
from domain.policies import DEFAULT_POLICY
from domain.resources import MAX_UNITS
from tangram_web.lib.serializers import StrictSerializer
from tangram_web.pools.models import NAME_LENGTH, NAME_PATTERN, RESOURCE_PATTERN

_SCOPES = [scope.value for scope in Scope]


class _Name(serializers.RegexField):
    """A name, as it stands: one with a space around it is another name, and not a valid one."""

    def __init__(self, pattern: str = NAME_PATTERN, **kwargs: Any) -> None:
        # JSON Schema knows no \Z; what $ lets pass here, a last line break, the services refuse.
        documented = pattern.replace(r"\Z", "$")
        super().__init__(documented, max_length=NAME_LENGTH, trim_whitespace=False, **kwargs)


class PoolBody(StrictSerializer):
    """A pool to make."""

    name = _Name()
    policy = serializers.CharField(max_length=NAME_LENGTH, default=DEFAULT_POLICY)
    paused = serializers.BooleanField(default=False)


class PoolPatch(StrictSerializer):
    """What shall change about a pool."""

    policy = serializers.CharField(max_length=NAME_LENGTH, required=False)
    paused = serializers.BooleanField(required=False)


class PoolView(serializers.Serializer[Any]):
    """A pool."""

    name = serializers.CharField()
    policy = serializers.CharField()
    paused = serializers.BooleanField()
    created_at = serializers.DateTimeField()


class ProjectBody(StrictSerializer):
    """A project to make."""

    name = _Name()
    default_pool = _Name(default="default")


class ProjectView(serializers.Serializer[Any]):
    """A project."""

    name = serializers.CharField()
    default_pool = serializers.CharField(source="default_pool_id")
    created_at = serializers.DateTimeField()


class ResourceLimit(StrictSerializer):
    """The limit of a cluster-wide resource."""

    limit_units = serializers.IntegerField(min_value=0, max_value=MAX_UNITS)


class ResourceBody(ResourceLimit):
    """A cluster-wide resource to add or to change."""

    name = _Name(RESOURCE_PATTERN)


class ResourceView(serializers.Serializer[Any]):
    """A cluster-wide resource."""

    name = serializers.CharField()
    limit_units = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class TokenBody(StrictSerializer):
    """A token to make."""

    name = serializers.CharField(max_length=NAME_LENGTH, help_text="For people to tell it by.")
    project = _Name(allow_null=True, required=False)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=_SCOPES), min_length=1, max_length=len(_SCOPES)
    )
    expires_at = serializers.DateTimeField(allow_null=True, required=False)


class TokenView(serializers.Serializer[Any]):
    """A token, without what makes it one."""

    id = serializers.CharField(source="public_id")
    name = serializers.CharField()
    project = serializers.CharField(source="project_id", allow_null=True)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=_SCOPES))
    created_at = serializers.DateTimeField(source="created")
    expires_at = serializers.DateTimeField(source="expiry", allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)


class NewTokenView(TokenView):
    """A token just made; ``token`` is shown this once."""

    token = serializers.CharField()


class DrainBody(StrictSerializer):
    """Why a node is drained."""

    reason = serializers.CharField(max_length=500, required=False, allow_blank=True, default="")


class NodeDrainView(serializers.Serializer[Any]):
    """Whether a node is drained."""

    node = serializers.CharField()
    drained = serializers.BooleanField()
    reason = serializers.CharField()
