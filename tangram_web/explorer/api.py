"""``/api/v1/views``: saved views, whose filter and order the lists of the API take, and the changes of them.

Members of a body have the names of the lists (``list``, ``q``, ``sort``); mistakes are those of the pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db.models import Q
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from domain.errors import InvalidRequest
from domain.principals import Principal, Scope
from tangram_web.explorer.fields import TABS
from tangram_web.explorer.models import SavedView
from tangram_web.explorer.saved_views import (
    MOST_VIEWS,
    ViewCaller,
    change_saved_view,
    store_view,
    view_to_change,
)
from tangram_web.lib.access import HasScope
from tangram_web.pools.models import Token

_LIST: Final = OpenApiParameter(
    "list", str, enum=list(TABS), description="Views of this list alone."
)
_MINE: Final = OpenApiParameter(
    "mine", bool, description="`true`: those of the caller's account alone as well, whose `project` is null."
)  # fmt: skip
_VIEW: Final = OpenApiParameter(
    "view", str, OpenApiParameter.PATH, description="Its id, or its name."
)
#: Member of a body, by the name of what it sets.
_MEMBERS: Final = {"/tab": "/list", "/query": "/q", "/order": "/sort"}
_NAME_SAYS: Final = "1 to 80 printable characters."
_SHARE_SAYS: Final = "Project whose members see it; null: the caller's account alone."


class SavedViewSerializer(serializers.Serializer[Any]):
    """A saved view."""

    id = serializers.CharField()
    list = serializers.CharField(source="tab", help_text="`actions`, `trajectories`, `tasks` or `rollouts`.")  # fmt: skip
    name = serializers.CharField()
    q = serializers.CharField(source="query", help_text="Its filter, as `q` of the list takes it.")
    sort = serializers.CharField(source="order", help_text="Its order, as `sort` of the list takes it; empty: the usual one.")  # fmt: skip
    project = serializers.CharField(source="project_id", allow_null=True)


class SavedViewListView(serializers.Serializer[Any]):
    """Saved views by name."""

    views = SavedViewSerializer(many=True)


class SavedViewBody(serializers.Serializer[Any]):
    """A view to save."""

    name = serializers.CharField(help_text=_NAME_SAYS)
    list = serializers.ChoiceField(list(TABS), default="actions")
    q = serializers.CharField(allow_blank=True, default="", trim_whitespace=False)
    sort = serializers.CharField(allow_blank=True, default="")
    columns = serializers.ListField(child=serializers.CharField(), default=[], help_text="Columns of its page; none: the usual ones.")  # fmt: skip
    project = serializers.CharField(allow_null=True, default=None, help_text=_SHARE_SAYS)


class SavedViewPatch(serializers.Serializer[Any]):
    """What of a view is changed; members that are left out stay as they are."""

    name = serializers.CharField(required=False, help_text=_NAME_SAYS)
    q = serializers.CharField(required=False, allow_blank=True, trim_whitespace=False)
    sort = serializers.CharField(required=False, allow_blank=True)
    project = serializers.CharField(required=False, allow_null=True, help_text=_SHARE_SAYS)


class SavedViewsApi(APIView):
    """The views that are saved for members of a project, and those of the caller's account."""

    permission_classes = (HasScope,)
    read_scope = write_scope = Scope.READ

    @extend_schema(
        operation_id="views_list", parameters=[_LIST, _MINE], responses=SavedViewListView
    )
    def get(self, request: Request) -> Response:
        """List saved views: of the token's project, or of all projects."""
        tab = request.query_params.get("list", "")
        if tab and tab not in TABS:
            raise ValidationError({"list": [f"give one of {', '.join(TABS)}"]})
        mine = request.query_params.get("mine", "false")
        if mine not in ("true", "false"):
            raise ValidationError({"mine": ["give true or false"]})
        own = request.auth.project  # type: ignore[union-attr]
        seen = Q(project__isnull=False) if own is None else Q(project=own)
        account = _caller_of(request).account if mine == "true" else None
        if account is not None:
            seen |= Q(owner=account, project__isnull=True)
        rows = SavedView.objects.filter(seen, **({"tab": tab} if tab else {}))
        found = rows.order_by("project", "name", "id")[: 2 * MOST_VIEWS]
        return Response({"views": SavedViewSerializer(found, many=True).data})

    @extend_schema(
        operation_id="views_save", request=SavedViewBody,
        responses={201: SavedViewSerializer, 200: SavedViewSerializer},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Save a view: 201; 200 where it replaces that of the same list, name and project.

        Without `project` it is the account's alone. A token saves views of a project with the scope `config`.
        """
        body = _read(request, SavedViewBody)
        with _as_members():
            view, new = store_view(
                _caller_of(request), tab=body["list"], name=body["name"], query=body["q"],
                order=body["sort"], columns=tuple(body["columns"]), project=body["project"] or "",
            )  # fmt: skip
        code = status.HTTP_201_CREATED if new else status.HTTP_200_OK
        return Response(SavedViewSerializer(view).data, status=code)


class SavedViewApi(APIView):
    """One saved view."""

    permission_classes = (HasScope,)
    write_scope = Scope.READ

    @extend_schema(
        operation_id="views_change", parameters=[_VIEW], request=SavedViewPatch,
        responses=SavedViewSerializer,
    )  # fmt: skip
    def patch(self, request: Request, view: str) -> Response:
        """Rename a view, share it with a project, or change its filter or order.

        Its owner may; of a view of a project an admin of the project as well, by a token with the scope `config`.
        """
        body, caller = _read(request, SavedViewPatch), _caller_of(request)
        project = (body["project"] or "") if "project" in body else None
        with _as_members():
            changed = change_saved_view(
                caller, view_to_change(caller, view), name=body.get("name"),
                query=body.get("q"), order=body.get("sort"), project=project,
            )  # fmt: skip
        return Response(SavedViewSerializer(changed).data)

    @extend_schema(
        operation_id="views_delete", parameters=[_VIEW], request=None, responses={204: None}
    )
    def delete(self, request: Request, view: str) -> Response:
        """Delete a view. The same may as change it."""
        view_to_change(_caller_of(request), view).delete()
        return Response(status=status.HTTP_204_NO_CONTENT)


def _caller_of(request: Request) -> ViewCaller:
    """Return the account of a request, or that for which its token acts."""
    principal: Principal = request.auth  # type: ignore[assignment]
    if not principal.token:
        return ViewCaller(request.user)
    token = Token.objects.filter(public_id=principal.token).select_related("user").first()
    return ViewCaller(None if token is None else token.user, principal)


def _read(request: Request, serializer: type[serializers.Serializer[Any]]) -> dict[str, Any]:
    read = serializer(data=request.data)
    read.is_valid(raise_exception=True)
    checked: dict[str, Any] = read.validated_data
    return checked


@contextmanager
def _as_members() -> Iterator[None]:
    """Let mistakes point at the member of the body."""
    try:
        yield
    except InvalidRequest as error:
        error.pointer = _MEMBERS.get(error.pointer, error.pointer)
        raise
