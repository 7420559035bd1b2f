"""The configuration: pools, projects, resources, services, fleets, selectors, node groups, drains, tokens, join tokens,
revisions.

These rows are the truth of the configuration; only `services` and `applying` change them. The
scheduler gets them as `domain.inventory.Config`; each applied state is stored as a `ConfigRevision`.
"""

from __future__ import annotations

import math
import secrets
from typing import ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from knox.models import AbstractAuthToken

from domain.confinement import OFF, REQUIRED
from domain.inventory import NODE_DEAD_SECONDS, NODE_GRACE_SECONDS
from domain.policies import DEFAULT_POLICY
from domain.principals import Scope
from domain.resources import MAX_UNITS
from tangram_web.lib.append_only import AppendOnly
from tangram_web.lib.fields import JsonText

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@+-]*\Z"
#: Name of a resource that is counted over the whole cluster: a kind and a name.
RESOURCE_PATTERN = r"^[a-z][a-z0-9_-]*:[A-Za-z0-9][A-Za-z0-9._@+-]*\Z"
NAME_LENGTH = 128
#: Longest text of a client's address.
ADDRESS_LENGTH = 64

_named = RegexValidator(NAME_PATTERN, "letters, digits and . _ : @ + - only")

#: Limits of the two timeouts: a node sends a heartbeat every second or so.
LEAST_SILENCE_SECONDS = 5.0
MOST_SILENCE_SECONDS = 7 * 86_400.0
_SILENCE = [MinValueValidator(LEAST_SILENCE_SECONDS), MaxValueValidator(MOST_SILENCE_SECONDS)]


class Pool(models.Model):
    """A set of nodes with one queue and one policy."""

    name = models.CharField(primary_key=True, max_length=NAME_LENGTH, validators=[_named])
    policy = models.CharField(max_length=NAME_LENGTH, default=DEFAULT_POLICY)
    #: Queued actions stay queued; running actions continue.
    paused = models.BooleanField(default=False)
    #: Actions that declare no cpu run on shared cores if the history of their family suggests it.
    light_by_default = models.BooleanField(default=True)
    #: After this time without a heartbeat, the actions of a node end as unknown.
    node_grace_seconds = models.FloatField(default=NODE_GRACE_SECONDS, validators=_SILENCE)
    #: After this time, the trajectories of the node end, too.
    node_dead_seconds = models.FloatField(default=NODE_DEAD_SECONDS, validators=_SILENCE)
    #: Kind of resource of its nodes → project → `domain.manifest.ShareSpec`.
    shares = JsonText(default=dict, blank=True)
    #: Nodes without a sandbox get no actions. Empty in a pool of an earlier version, until
    #: `tangram_web.pools.upgrading` decides.
    sandbox = models.CharField(
        max_length=16, choices=[(REQUIRED, REQUIRED), (OFF, OFF)], default=REQUIRED, db_default="", blank=True
    )  # fmt: skip
    #: Environments may use the network of their node.
    host_network = models.BooleanField(default=False, db_default=True)
    #: `domain.egress.EgressRules`.
    egress = JsonText(default=dict, db_default={}, blank=True)
    #: Prepared environments that each node keeps: image → number.
    warm = JsonText(default=dict, db_default={}, blank=True)
    #: Idle environments leave a node that lets its trajectories finish.
    move_environments = models.BooleanField(default=True, db_default=True)
    #: An action that waits for its node moves with its environment to a node that has room.
    rebalance_environments = models.BooleanField(default=True, db_default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raise ValidationError for times that are not finite, or end trajectories before actions."""
        for field in ("node_grace_seconds", "node_dead_seconds"):
            if not math.isfinite(getattr(self, field)):
                raise ValidationError({field: "a number of seconds"})
        if self.node_dead_seconds < self.node_grace_seconds:
            raise ValidationError(
                {"node_dead_seconds": "not less than node_grace_seconds: actions end first"}
            )


class Project(models.Model):
    """A tenant: owns tasks and tokens."""

    name = models.CharField(primary_key=True, max_length=NAME_LENGTH, validators=[_named])
    default_pool = models.ForeignKey(Pool, on_delete=models.PROTECT)
    #: `domain.project_limits.ProjectBounds`.
    limits = JsonText(default=dict, db_default={}, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Resource(models.Model):
    """A cluster-wide counted resource, such as ``api:search``."""

    name = models.CharField(
        primary_key=True,
        max_length=NAME_LENGTH,
        validators=[RegexValidator(RESOURCE_PATTERN, "give kind:name, as in api:search")],
    )
    #: Units that may be held at once; 0 stops all grants of it.
    limit_units = models.PositiveIntegerField(validators=[MinValueValidator(0)])
    #: `domain.manifest.ResourceSpec` but for ``limit_units``.
    spec = JsonText(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(limit_units__lte=MAX_UNITS), name="resource_limit"
            )
        ]

    def __str__(self) -> str:
        return self.name


class GpuServiceRow(models.Model):
    """A model on GPUs that actions call as ``service:<name>``."""

    name = models.CharField(primary_key=True, max_length=NAME_LENGTH, validators=[_named])
    #: `domain.services.GpuService`.
    spec = JsonText(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "GPU service"

    def __str__(self) -> str:
        return self.name


class FleetRow(models.Model):
    """Workers of a language model that actions call as ``fleet:<name>``."""

    name = models.CharField(primary_key=True, max_length=NAME_LENGTH, validators=[_named])
    #: `domain.fleets.FleetSpec`.
    spec = JsonText(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "fleet"

    def __str__(self) -> str:
        return self.name


class SelectorRow(models.Model):
    """A selector of degrees of parallelism."""

    name = models.CharField(primary_key=True, max_length=NAME_LENGTH, validators=[_named])
    #: `domain.selectors.SelectorSpec`.
    spec = JsonText(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "selector"

    def __str__(self) -> str:
        return self.name


class NodeGroupRow(models.Model):
    """Nodes that an engine of the cluster places."""

    name = models.CharField(primary_key=True, max_length=NAME_LENGTH, validators=[_named])
    #: `domain.node_groups.NodeGroupSpec`.
    spec = JsonText(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = "node group"

    def __str__(self) -> str:
        return self.name


class NodeDrain(models.Model):
    """A drain: the node gets no new actions. The node need not have joined yet."""

    node = models.CharField(primary_key=True, max_length=NAME_LENGTH, validators=[_named])
    reason = models.CharField(max_length=500, blank=True, default="")
    #: Trajectories that have their environment there continue.
    finishing = models.BooleanField(default=False, db_default=False)
    since = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.node


def new_token_id() -> str:
    """Return a public id, which names a token without revealing it."""
    return f"tok_{secrets.token_hex(8)}"


class Token(AbstractAuthToken):
    """A bearer token. Only its hash is stored; the token itself is shown once."""

    public_id = models.CharField(max_length=32, unique=True, default=new_token_id)
    name = models.CharField(max_length=NAME_LENGTH)
    #: Empty: every project.
    project = models.ForeignKey(
        Project, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    scopes = JsonText(default=list)
    #: The account it acts for, if any: it is deleted with that account.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE
    )
    #: Networks (CIDR) from which it may be used; empty: every address.
    networks = JsonText(default=list, db_default=[])
    last_used_at = models.DateTimeField(null=True)
    #: Address of the client at that time; empty for uses that earlier versions recorded.
    last_used_from = models.CharField(
        max_length=ADDRESS_LENGTH, blank=True, default="", db_default=""
    )
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "token"

    def __str__(self) -> str:
        return f"{self.name} ({self.public_id})"

    @property
    def scope_set(self) -> frozenset[Scope]:
        """The scopes as `Scope` values."""
        return frozenset(Scope(scope) for scope in self.scopes)


def new_join_id() -> str:
    """Return a public id of a join token."""
    return f"join_{secrets.token_hex(8)}"


class JoinToken(models.Model):
    """A token by which machines join as nodes. Only its hash is stored; the token itself is shown once."""

    public_id = models.CharField(max_length=32, unique=True, default=new_join_id)
    #: SHA-256 of the token, in hexadecimal digits.
    digest = models.CharField(max_length=64, unique=True)
    #: The only node that may use it, or what the names of nodes begin with; empty: any name.
    node = models.CharField(max_length=NAME_LENGTH, blank=True)
    is_prefix = models.BooleanField(default=False)
    #: Pool and isolation of the nodes; empty: as the machine says.
    pool = models.CharField(max_length=NAME_LENGTH, blank=True)
    isolation = models.CharField(max_length=16, blank=True)
    uses = models.PositiveIntegerField(default=1)
    used = models.PositiveIntegerField(default=0)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.public_id


class ConfigRevision(AppendOnly):
    """One applied state of the whole configuration."""

    number = models.PositiveBigIntegerField(primary_key=True)
    author = models.CharField(max_length=NAME_LENGTH)
    #: `domain.inventory.Config` as JSON.
    snapshot = JsonText()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"revision {self.number}"
