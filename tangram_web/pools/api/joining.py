"""Join tokens, the joining of nodes and their revocation over REST."""

from __future__ import annotations

from typing import Any

from axes.handlers.proxy import AxesProxyHandler
from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from contract.node_access import PASSWORD_DIGEST
from domain.principals import Scope, client_address
from tangram_web.audit.services import actor_with_token
from tangram_web.lib.access import ApiError
from tangram_web.pools import join_tokens, node_access
from tangram_web.pools.api.serializers import StrictSerializer
from tangram_web.pools.api.views import (
    ChangesWholeSystem,
    ConfigViewSet,
    NodeControl,
    check_known,
)
from tangram_web.pools.authentication import actor_of
from tangram_web.pools.models import NAME_LENGTH, JoinToken

_SECRET = {"Cache-Control": "no-store"}


def _name(about: str) -> serializers.CharField:
    return serializers.CharField(
        max_length=NAME_LENGTH, required=False, allow_blank=True, help_text=about
    )


class JoinTokenBody(StrictSerializer):
    """A join token to create."""

    node = _name("The only node that may use it.")
    prefix = _name("What the names of its nodes begin with.")
    pool = _name("Pool of its nodes; none: as each machine says.")
    isolation = serializers.ChoiceField(
        choices=join_tokens.ISOLATIONS, required=False, help_text="Isolation of its nodes."
    )
    seconds = serializers.IntegerField(
        default=join_tokens.DEFAULT_SECONDS, min_value=1, max_value=join_tokens.MOST_SECONDS,
        help_text="After which it expires.",
    )  # fmt: skip
    uses = serializers.IntegerField(default=1, min_value=1, max_value=join_tokens.MOST_USES)


class JoinTokenView(serializers.Serializer[Any]):
    """A join token without its secret."""

    id = serializers.CharField(source="public_id")
    node = serializers.SerializerMethodField(help_text="Empty: any, or those with the prefix.")
    prefix = serializers.SerializerMethodField()
    pool = serializers.CharField()
    isolation = serializers.CharField()
    uses = serializers.IntegerField()
    used = serializers.IntegerField()
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    revoked_at = serializers.DateTimeField(allow_null=True)
    useless = serializers.SerializerMethodField(
        help_text="Why it is of no use any more; empty: it is."
    )

    def get_node(self, token: JoinToken) -> str:
        """Return the one name."""
        return "" if token.is_prefix else token.node

    def get_prefix(self, token: JoinToken) -> str:
        """Return the prefix of names."""
        return token.node if token.is_prefix else ""

    def get_useless(self, token: JoinToken) -> str:
        """Return why it is of no use any more."""
        return join_tokens.why_useless(token, timezone.now())


class NewJoinTokenView(JoinTokenView):
    """A new join token; only this response contains ``token``."""

    token = serializers.CharField()


class NodeJoinBody(StrictSerializer):
    """A machine that wants to join."""

    password_sha256 = serializers.RegexField(
        rf"^{PASSWORD_DIGEST.pattern}\Z",
        help_text="SHA-256 of the password for Redis that the machine made, in hexadecimal digits.",
    )
    pool = _name("The pool that it would join; that of the token comes first.")


class NodeRedisView(serializers.Serializer[Any]):
    """How a node reaches Redis."""

    url = serializers.CharField(help_text="Without user and password.")
    ca = serializers.CharField(
        help_text="PEM of who signs the certificate of Redis; empty: as known."
    )


class NodeAdmissionView(serializers.Serializer[Any]):
    """What a node worker is started with."""

    node = serializers.CharField()
    pool = serializers.CharField(help_text="Empty: as the machine says.")
    isolation = serializers.CharField(help_text="Empty: as the machine says.")
    key_prefix = serializers.CharField()
    redis = NodeRedisView()
    user = serializers.CharField(help_text="Its user of Redis.")


class NodeRevokedView(serializers.Serializer[Any]):
    """A node that is fenced, and whether its user of Redis is deleted yet."""

    node = serializers.CharField()
    user_deleted = serializers.BooleanField(
        help_text="false: the keeper of node access does not run, and deletes it once it does."
    )


class JoinTokenViewSet(ConfigViewSet):
    """Tokens by which machines join as nodes."""

    permission_classes = (ChangesWholeSystem,)
    read_scope = write_scope = Scope.ADMIN
    queryset = JoinToken.objects.all()
    serializer_class = view_serializer = JoinTokenView
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    lookup_value_regex = r"join_[0-9a-f]{16}"

    @extend_schema(request=JoinTokenBody, responses={201: NewJoinTokenView})
    def create(self, request: Request) -> Response:
        """Create a join token; only this response contains it. It expires after an hour and works once by default."""
        body = self.body(JoinTokenBody)
        token, raw = join_tokens.join_token_create(actor=actor_of(request), **body)
        shown = {**JoinTokenView(token).data, "token": raw}
        return Response(shown, status=status.HTTP_201_CREATED, headers=_SECRET)

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, **path: str) -> Response:
        """Revoke a join token; nodes that joined by it stay."""
        join_tokens.join_token_revoke(actor=actor_of(request), public_id=path["id"])
        return Response(status=status.HTTP_204_NO_CONTENT)


class NodeJoin(APIView):
    """Joining, by a join token in place of one of the API."""

    authentication_classes = ()
    permission_classes = ()
    #: Shown in the OpenAPI document in place of a scope.
    own_token = "join"

    @extend_schema(request=NodeJoinBody, responses=NodeAdmissionView, operation_id="nodes_join")
    def post(self, request: Request, name: str) -> Response:
        """Admit a machine as a node; 401 for an unknown token, 410 for one that is of no use any more."""
        address = request.META.get("REMOTE_ADDR", "")
        _check_encrypted(request, address)
        token = _token_of(request, address)
        body = NodeJoinBody(data=request.data)
        body.is_valid(raise_exception=True)
        admission = join_tokens.join(
            token, node=name, pool=body.validated_data.get("pool", ""),
            digest=body.validated_data["password_sha256"],
            actor=actor_with_token(request._request, token.public_id),
        )  # fmt: skip
        return Response(NodeAdmissionView(admission).data, headers=_SECRET)


class NodeRevokeControl(NodeControl):
    """Revocation."""

    @extend_schema(request=None, responses=NodeRevokedView, operation_id="nodes_revoke")
    def post(self, request: Request, name: str) -> Response:
        """Fence a node and delete its user of Redis: what runs there ends now, and its reports are dropped."""
        node_access.require_users()
        if not node_access.has_access(name):
            check_known(name)
        deleted = join_tokens.node_revoke(actor=actor_of(request), node=name)
        return Response(NodeRevokedView({"node": name, "user_deleted": deleted}).data)


def _check_encrypted(request: Request, address: str) -> None:
    """Raise a refusal of a join token that crosses a network in clear."""
    client = client_address(address)
    if request.is_secure() or (client is not None and client.is_loopback):
        return
    detail = (
        "join tokens are accepted over https alone: revoke this one, which crossed the network in clear, and use the address of the TLS"
        " proxy (whose address is in FORWARDED_ALLOW_IPS, so that its X-Forwarded-Proto counts)"
    )
    raise ApiError(status.HTTP_403_FORBIDDEN, detail, "https_required")


def _token_of(request: Request, address: str) -> JoinToken:
    """Return the token of a request; guesses lock the address, as failed sign-ins do."""
    guessing: dict[str, Any] = {"username": f"join token from {address}"}
    if not AxesProxyHandler.is_allowed(request._request, guessing):
        seconds = settings.AXES_COOLOFF_TIME.total_seconds()
        refusal = ApiError(
            status.HTTP_429_TOO_MANY_REQUESTS,
            f"too many unknown tokens from this address: try again in {seconds / 60:g} minutes",
            "too_many_requests",
        )
        refusal.wait = seconds  # type: ignore[attr-defined]
        raise refusal
    scheme, _, raw = request.headers.get("Authorization", "").partition(" ")
    token = join_tokens.token_of(raw.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        AxesProxyHandler.user_login_failed(JoinToken, guessing, request._request)
        detail = "the join token is unknown: have an admin create one (tangram node token create)"
        raise ApiError(status.HTTP_401_UNAUTHORIZED, detail, "unauthorized")
    return token
