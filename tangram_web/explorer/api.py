"""``GET /api/v1/views``: the saved views of a project, whose filter and order the lists of the API take."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from domain.principals import Scope
from tangram_web.explorer.fields import TABS
from tangram_web.explorer.models import SavedView
from tangram_web.explorer.saved_views import MOST_VIEWS
from tangram_web.lib.access import HasScope

_LIST = OpenApiParameter("list", str, enum=list(TABS), description="Views of this list alone.")


class SavedViewSerializer(serializers.Serializer[Any]):
    """A saved view."""

    id = serializers.CharField()
    list = serializers.CharField(source="tab", help_text="`actions`, `trajectories`, `tasks` or `rollouts`.")  # fmt: skip
    name = serializers.CharField()
    q = serializers.CharField(source="query", help_text="Its filter, as `q` of the list takes it.")
    sort = serializers.CharField(source="order", help_text="Its order, as `sort` of the list takes it; empty: the usual one.")  # fmt: skip
    project = serializers.CharField(source="project_id")


class SavedViewListView(serializers.Serializer[Any]):
    """Saved views by name."""

    views = SavedViewSerializer(many=True)


class SavedViewsApi(APIView):
    """The views that are saved for members of a project; those of one person are on that person's pages alone."""

    permission_classes = (HasScope,)
    read_scope = Scope.READ

    @extend_schema(operation_id="views_list", parameters=[_LIST], responses=SavedViewListView)
    def get(self, request: Request) -> Response:
        """List saved views: of the token's project, or of all projects."""
        tab = request.query_params.get("list", "")
        if tab and tab not in TABS:
            raise ValidationError({"list": [f"give one of {', '.join(TABS)}"]})
        own = request.auth.project  # type: ignore[union-attr]
        seen = Q(project__isnull=False) if own is None else Q(project=own)
        rows = SavedView.objects.filter(seen, **({"tab": tab} if tab else {}))
        found = rows.order_by("project", "name", "id")[: 2 * MOST_VIEWS]
        return Response({"views": SavedViewSerializer(found, many=True).data})
