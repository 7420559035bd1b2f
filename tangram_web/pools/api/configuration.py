"""The whole configuration over REST: export, diff, apply, revisions, rollback.

Bodies are YAML or JSON text, one document for each object. An answer's ETag is the revision; with
``If-Match`` a change is refused (412) when the configuration has changed since. Callers that are bound
to a project get what `visibility` shows to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import IO, Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from domain.errors import InvalidRequest
from domain.inventory import Config
from domain.principals import Scope
from tangram_web.lib.access import ApiError
from tangram_web.pools import applying, manifests
from tangram_web.pools.api.views import ChangesWholeSystem
from tangram_web.pools.authentication import actor_of
from tangram_web.pools.secrets import sealed
from tangram_web.pools.selectors import current_config
from tangram_web.pools.visibility import Projects, projects_of, visible
from tangram_web.pools.yaml_text import MAX_CHARACTERS

#: Revisions of one answer.
REVISIONS = 100

_PRUNE = OpenApiParameter("prune", bool, description="Delete objects that the file does not name.")
_IF_MATCH = OpenApiParameter("If-Match", str, OpenApiParameter.HEADER)


class TextParser(BaseParser):
    """The body as text."""

    media_type = "application/yaml"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the text of the body."""
        try:
            return stream.read(4 * MAX_CHARACTERS + 1).decode()
        except UnicodeDecodeError as error:
            raise ParseError(f"the body is not UTF-8: {error}") from error


class JsonTextParser(TextParser):
    """JSON is YAML."""

    media_type = "application/json"


class YamlRenderer(BaseRenderer):
    """Documents as YAML."""

    media_type = "application/yaml"
    format = "yaml"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the documents of an export as YAML; other responses stay JSON."""
        if isinstance(data, dict) and "documents" in data:
            return manifests.to_yaml(data["documents"]).encode()
        rendered: bytes = JSONRenderer().render(data)
        return rendered


class ChangeView(serializers.Serializer[Any]):
    """The change of one object."""

    verb = serializers.ChoiceField(choices=["create", "update", "delete"])
    kind = serializers.ChoiceField(choices=list(manifests.KINDS))
    name = serializers.CharField()
    before = serializers.DictField(allow_null=True)
    after = serializers.DictField(allow_null=True)


class ChangesView(serializers.Serializer[Any]):
    """Changes, and the resulting revision."""

    revision = serializers.IntegerField()
    changes = ChangeView(many=True)


class ConfigurationView(serializers.Serializer[Any]):
    """The whole configuration."""

    revision = serializers.IntegerField()
    documents = serializers.ListField(child=serializers.DictField())


class RevisionView(serializers.Serializer[Any]):
    """One applied state."""

    number = serializers.IntegerField()
    author = serializers.CharField()
    created_at = serializers.DateTimeField()


class _View(APIView):
    permission_classes = (ChangesWholeSystem,)
    parser_classes = (TextParser, JsonTextParser)
    read_scope = Scope.READ
    write_scope = Scope.CONFIG


class Export(_View):
    """The configuration in force."""

    renderer_classes = (JSONRenderer, YamlRenderer)

    @extend_schema(responses=ConfigurationView, operation_id="config_export")
    def get(self, request: Request) -> Response:
        """Return every object, defaults left out; as a file with ``Accept: application/yaml``."""
        return _exported(visible(current_config(), _projects(request)))


class Diff(_View):
    """The changes that a file would make."""

    write_scope = Scope.READ

    @extend_schema(
        request={"application/yaml": OpenApiTypes.STR},
        responses=ChangesView,
        parameters=[_PRUNE],
        operation_id="config_diff",
    )
    def post(self, request: Request) -> Response:
        """Compare a file with the configuration in force, without changing it."""
        config = visible(current_config(), _projects(request))
        wanted = _wanted(request)
        return _changed(config, applying.changes(wanted, config, prune=_prune(request)))


class Apply(_View):
    """Applying a file."""

    @extend_schema(
        request={"application/yaml": OpenApiTypes.STR},
        responses=ChangesView,
        parameters=[_PRUNE, _IF_MATCH],
        operation_id="config_apply",
    )
    def post(self, request: Request) -> Response:
        """Apply all differences as one revision, or none."""
        wanted = _wanted(request)
        return _done(
            lambda: applying.apply(
                wanted,
                actor=actor_of(request),
                prune=_prune(request),
                expected=_expected(request),
            )
        )


class Revisions(_View):
    """Every applied state."""

    @extend_schema(responses=RevisionView(many=True), operation_id="config_revisions")
    def get(self, request: Request) -> Response:
        """Return the latest hundred that changed what the caller may see, latest first."""
        rows = applying.revisions_seen_by(_projects(request), REVISIONS)
        return Response(RevisionView(rows, many=True).data)


class Revision(_View):
    """One applied state."""

    renderer_classes = (JSONRenderer, YamlRenderer)

    @extend_schema(responses=ConfigurationView, operation_id="config_revision")
    def get(self, request: Request, number: str) -> Response:
        """Return the configuration of the revision."""
        return _exported(visible(applying.revision(int(number)), _projects(request)))


class RollBack(_View):
    """Rollback to a revision."""

    @extend_schema(
        request=None,
        responses=ChangesView,
        parameters=[_IF_MATCH],
        operation_id="config_roll_back",
    )
    def post(self, request: Request, number: str) -> Response:
        """Apply an earlier revision as a new one."""
        return _done(
            lambda: applying.roll_back(
                int(number), actor=actor_of(request), expected=_expected(request)
            )
        )


class Schema(_View):
    """The schema of documents."""

    @extend_schema(responses=OpenApiTypes.OBJECT, operation_id="config_schema")
    def get(self, request: Request) -> Response:
        """Return the JSON Schema of one document, for editors."""
        return Response(manifests.json_schema())


def _projects(request: Request) -> Projects:
    """Return the projects that the caller may see."""
    return projects_of(request.auth)  # type: ignore[arg-type]


def _wanted(request: Request) -> manifests.Wanted:
    """Return the specs in the file. Raises InvalidRequest, also for a file that would prune everything."""
    data: Any = request.data
    parsed = manifests.parse(data if isinstance(data, str) else "")
    wanted = sealed(parsed, current_config(), from_outside=True)
    if not wanted and _prune(request):
        raise InvalidRequest("the file is empty, so prune would delete everything")
    return wanted


def _prune(request: Request) -> bool:
    return request.query_params.get("prune", "").lower() in {"1", "true", "yes"}


def _expected(request: Request) -> int | None:
    asked = request.headers.get("If-Match", "").strip()
    if asked in {"", "*"}:
        return None
    number = re.fullmatch(r'(?:W/)?"?rev-(\d{1,18})"?', asked)
    if number is None:
        raise ApiError(412, f'{asked} is not a revision; give one like "rev-7"', "stale")
    return int(number[1])


def _done(work: Any) -> Response:
    try:
        config, changed = work()
    except applying.Stale as error:
        raise ApiError(412, str(error), "stale") from error
    return _changed(config, changed)


def _changed(config: Config, changed: list[applying.Change]) -> Response:
    body = {"revision": config.revision, "changes": [each._asdict() for each in changed]}
    return Response(body, headers=_tag(config))


def _exported(config: Config) -> Response:
    documents = manifests.plain(manifests.specs_of(config))
    return Response({"revision": config.revision, "documents": documents}, headers=_tag(config))


def _tag(config: Config) -> dict[str, str]:
    return {"ETag": f'"rev-{config.revision}"'}
