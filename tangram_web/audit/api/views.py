"""Audit entries over REST, read only."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.mixins import ListModelMixin
from rest_framework.viewsets import GenericViewSet

from domain.principals import Scope
from tangram_web.audit import selectors
from tangram_web.audit.models import AuditEntry


class AuditEntryView(serializers.Serializer[Any]):
    """One audited verb."""

    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    actor = serializers.CharField()
    token_name = serializers.CharField()
    via = serializers.CharField()
    verb = serializers.CharField()
    target = serializers.CharField()
    project = serializers.CharField()
    before = serializers.DictField(allow_null=True)
    after = serializers.DictField(allow_null=True)
    request_id = serializers.CharField()


_FILTERS = [OpenApiParameter(name, str) for name in selectors.FILTERS]


@extend_schema_view(list=extend_schema(parameters=_FILTERS))
class AuditViewSet(ListModelMixin, GenericViewSet[Any]):
    """Audited verbs, newest first."""

    read_scope = Scope.OPERATE
    queryset = AuditEntry.objects.order_by("-id")
    serializer_class = AuditEntryView
    filter_backends = ()

    def get_queryset(self) -> QuerySet[AuditEntry]:
        """Select the entries that the caller may see and that match the filters."""
        rows = selectors.entries_seen_by(self.request.auth)  # type: ignore[arg-type]
        try:
            return selectors.filtered(rows, self.request.query_params)
        except selectors.AuditFilterError as error:
            raise ValidationError({"filter": [str(error)]}) from error
