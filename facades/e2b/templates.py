"""Templates: what sandboxes begin with, by name.

A name of a template is, in this order: a snapshot of the project, a template that was built here, one of `EMPTY`, which
begin with the environment of the nodes, or an image that the nodes have. A tag ``default`` is left out.

A build begins with an image that the nodes have, or with another template; nothing is pulled, since the nodes have images
by ``tangram image import``. Steps are run by `facades.e2b.builds`. ``USER`` changes nothing: commands have the user of the
environment. A start command makes the build fail with that reason.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from contract.receipts import SnapshotList
from contract.routes import Route
from domain.errors import InvalidRequest, NotFound
from domain.principals import Principal, Scope
from facades.e2b.builds import Base, Builds, Step, plan_of
from facades.e2b.requests import route
from facades.e2b.template_files import ROUTES as FILES
from facades.e2b.template_files import TemplateFiles
from facades.node_images import image_of
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.request_parsing import checked_name, decode
from scheduler.runtime.gateway.route_table import Handler

#: Templates of E2B that name no image: the environment of the nodes.
EMPTY: Final = ("base", "code-interpreter-v1", "code-interpreter-beta")
#: Images of E2B that stand for them in a build.
EMPTY_IMAGES: Final = ("e2bdev/base", "e2bdev/code-interpreter")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


class NewTemplate(msgspec.Struct, rename="camel"):
    """A template to build."""

    name: str = ""
    alias: str = ""
    cpu_count: int | None = None
    memory_mb: int | None = msgspec.field(default=None, name="memoryMB")
    tags: list[str] = []


class Build(msgspec.Struct, rename="camel"):
    """What a template is built from."""

    from_image: str | None = None
    from_template: str | None = None
    steps: list[Step] = []
    start_cmd: str | None = None


_template = msgspec.json.Decoder(NewTemplate)
_build = msgspec.json.Decoder(Build)


def _routes() -> tuple[Route, ...]:
    read, submit = Scope.READ, Scope.SUBMIT
    build = "/templates/{id}/builds/{build}"
    return (
        route("GET", "/templates/aliases/{path}", "template_alias", "Find a template", read),
        route("GET", f"{build}/status", "template_status", "Progress of a build", read),
        *FILES,
        *(
            route("POST", f"{v}/templates", "template_create", "Name a template", submit)
            for v in ("", "/v2", "/v3")
        ),
        *(
            route("POST", f"{v}{build}", "template_build", "Build a template", submit)
            for v in ("", "/v2")
        ),
        route("GET", "/templates", "template_list", "List templates", read),
        route("DELETE", "/templates/{path}", "template_remove", "Remove a template", submit),
    )


ROUTES: Final = _routes()


def handlers(port: FacadePort) -> Mapping[str, Handler]:
    """Return the handlers of the routes."""
    templates = Templates(port)
    made: dict[str, Handler] = {
        "alias": templates.alias,
        "status": templates.status,
        "create": templates.create,
        "build": templates.build,
        "list": templates.list,
        "remove": templates.remove,
    }
    own = {f"e2b_template_{operation}": handler for operation, handler in made.items()}
    return {**own, **TemplateFiles(port).handlers()}


class Templates:
    """Handlers of ``/templates``, and what a sandbox begins with."""

    def __init__(self, port: FacadePort) -> None:
        self._port = port
        self._builds = Builds(port)

    async def base(self, native: NativeCalls, project: str, name: str) -> Base:
        """Return what a template names. Raises NotFound, Conflict for one whose build failed."""
        name = _plain(name)
        if not _NAME.fullmatch(name):
            raise NotFound(f"{name[:80]!r} cannot be the name of a template")
        if name in await _snapshots(native):
            return Base({"snapshot": name}, {})
        record = await self._port.records.get(project, name)
        if record is not None:
            if "environment" not in record:
                why = record.get("reason") or "it was never built"
                raise NotFound(f"template {name!r} is not ready: {why}")
            return Base(record["environment"], record["envs"])
        if name in EMPTY:
            return Base({}, {})
        if (image := await image_of(native, name)) is not None:
            return Base({"image": image}, {})
        raise NotFound(
            f"template {name!r} was not found: import an image of this name, or build it"
        )

    async def alias(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """GET /templates/aliases/{alias}: 200 when a sandbox can begin with it, else 404."""
        native = self._port.native(request, principal)
        await self.base(native, await native.project(), name)
        return HttpResponse(200, {"templateID": _plain(name), "public": False})

    async def create(self, request: HttpRequest, principal: Principal, _: None) -> HttpResponse:
        """POST /templates: 202, and the id of the build that is to be started."""
        asked = decode(_template, await request.body())
        name = _plain(asked.name or asked.alias)
        if not name:
            raise InvalidRequest("name the template", pointer="/name")
        checked_name(name, "template")
        native, build = self._port.native(request, principal), secrets.token_hex(10)
        records, project = self._port.records, await native.project()
        # What an earlier build led to stays until this one has ended.
        record = {**(await records.get(project, name) or {}), "build": build, "status": "waiting"}
        await records.put(project, name, record)
        answer = {
            "templateID": name,
            "buildID": build,
            "public": False,
            "names": [name],
            "aliases": [name],
            "tags": asked.tags or ["default"],
        }
        return HttpResponse(202, answer)

    async def build(
        self, request: HttpRequest, principal: Principal, _: None, name: str, build: str
    ) -> HttpResponse:
        """POST /templates/{id}/builds/{build}: 202; one without commands is done when this is answered."""
        asked = decode(_build, await request.body())
        native = self._port.native(request, principal)
        project = await native.project()
        record = await self._record(project, name, build)
        try:
            base = await self._begins_with(native, project, asked)
            plan = plan_of(asked.steps, base.envs)
        except (NotFound, InvalidRequest) as error:
            record |= {"status": "error", "reason": str(error)}
        else:
            if plan.commands:
                begun = (request.again(b""), principal, name, record, base.environment, plan)
                await self._builds.begin(*begun)
                return HttpResponse(202)
            made = {"environment": base.environment, "envs": plan.envs}
            record |= {"status": "ready", "reason": "", **made}
        await self._port.records.put(project, name, record)
        return HttpResponse(202)

    async def _begins_with(self, native: NativeCalls, project: str, asked: Build) -> Base:
        """Return what a build begins with. Raises NotFound, InvalidRequest."""
        if asked.start_cmd:
            raise InvalidRequest("start commands are not run here: start it in each sandbox")
        if asked.from_template:
            return await self.base(native, project, asked.from_template)
        if not asked.from_image:
            raise InvalidRequest("name an image with fromImage, or a template with fromTemplate")
        if asked.from_image.removesuffix(":latest") in EMPTY_IMAGES:
            return Base({}, {})
        if (image := await image_of(native, asked.from_image)) is not None:
            return Base({"image": image}, {})
        raise NotFound(
            f"no node has the image {asked.from_image!r}: import it with"
            " `tangram image import`; nothing is pulled here"
        )

    async def status(
        self, request: HttpRequest, principal: Principal, _: None, name: str, build: str
    ) -> HttpResponse:
        """GET /templates/{id}/builds/{build}/status."""
        native = self._port.native(request, principal)
        project = await native.project()
        record = await self._record(project, name, build)
        if record["status"] == "building" and not await self._builds.is_open(native, record):
            record = await self._record(project, name, build)  # it may have ended just now
            if record["status"] == "building":
                reason = "the web process of the build ended: build again"
                record |= {"status": "error", "reason": reason}
        reason = record.get("reason", "")
        answer: dict[str, Any] = {
            "templateID": name,
            "buildID": build,
            "status": record["status"],
            "logs": [reason] if reason else [],
            "logEntries": [],
        }
        if reason:
            answer["reason"] = {"message": reason}
        return HttpResponse(200, answer)

    async def list(self, request: HttpRequest, principal: Principal, _: None) -> HttpResponse:
        """GET /templates: those that were built here."""
        native = self._port.native(request, principal)
        found = await self._port.records.all(await native.project())
        shown = [
            {
                "templateID": name,
                "buildID": record.get("build", ""),
                "public": False,
                "aliases": [name],
                "names": [name],
                "buildStatus": record.get("status", ""),
            }
            for name, record in sorted(found.items())
        ]
        return HttpResponse(200, shown)

    async def remove(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """DELETE /templates/{id}: 204 for a template or a snapshot; 404 when there is none."""
        await request.body()
        native, name = self._port.native(request, principal), _plain(name)
        records, project = self._port.records, await native.project()
        record = await records.get(project, name)
        if record is not None and await records.remove(project, name):
            if record.get("snapshot"):
                with suppress(NotFound):
                    await native.call("snapshots_remove", record["snapshot"])
            return HttpResponse(204)
        await native.call("snapshots_remove", name)
        return HttpResponse(204)

    async def _record(self, project: str, name: str, build: str = "") -> dict[str, Any]:
        record = await self._port.records.get(project, name)
        if record is None or build not in ("", record.get("build")):
            raise NotFound(f"there is no build {build!r} of template {name!r}")
        return record


async def _snapshots(native: NativeCalls) -> set[str]:
    answer = await native.call("snapshots_list")
    return {each.name for each in msgspec.json.decode(answer.content, type=SnapshotList).items}


def _plain(name: str) -> str:
    """Return the name of a template without the tag ``default``."""
    return name.removesuffix(":default")
