"""Files of templates: what ``COPY`` steps need, uploaded before a build.

The SDKs ask for a link by the hash of the files, and send an archive to it unless they are present. The archive is
unpacked in a trajectory whose name has the hash and the day, so the builds of the project with equal files find them
on this day and the next one. The link carries a token that holds for this hash alone.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from secrets import token_hex
from typing import Final
from urllib.parse import quote

from domain.errors import Conflict, InvalidRequest, NotFound, TangramError
from domain.ports.files import MAX_UPLOAD_BYTES
from domain.principals import Principal, Scope
from facades.e2b.access import Holder
from facades.e2b.paths import WORKSPACE
from facades.e2b.requests import route
from facades.e2b.sandbox import sandboxes_of
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.route_table import Handler

#: Task of the trajectories of builds, and of those that hold files for them.
TASK: Final = "e2b-template"

_KEPT_SECONDS: Final = 172_800.0
_KIND: Final = "files"
_FOLDER: Final = f"{WORKSPACE}/files"
_HASH: Final = re.compile(r"[0-9A-Za-z_-]{1,100}")
ROUTES: Final = (
    route("GET", "/templates/{id}/files/{hash}", "template_files", "Where to upload", Scope.SUBMIT),
    route("PUT", "/templates/{id}/files/{hash}", "template_upload", "Upload", None),
)


class TemplateFiles:
    """Handlers of ``/templates/{id}/files/{hash}``."""

    def __init__(self, port: FacadePort) -> None:
        self._port = port

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers of `ROUTES`."""
        return {"e2b_template_files": self.link, "e2b_template_upload": self.upload}

    async def link(
        self, request: HttpRequest, principal: Principal, _: None, name: str, digest: str
    ) -> HttpResponse:
        """GET: 201 ``{present, url}``."""
        await request.body()
        native = self._port.native(request, principal)
        holder = Holder(await native.project(), principal.name, principal.networks)
        present = await _store(native, digest) is not None
        token = (await sandboxes_of(self._port).tokens()).token(_KIND, digest, holder)
        scheme = request.scope.get("scheme", "http")
        host = request.header(b"host") or "localhost"
        url = f"{scheme}://{host}{quote(request.path)}?token={quote(token)}"
        return HttpResponse(201, {"present": present, "url": url})

    async def upload(self, request: HttpRequest, _: None, name: str, digest: str) -> HttpResponse:
        """PUT: an archive, which replaces what was uploaded before."""
        shown = request.query().get("token", "")
        holder = (await sandboxes_of(self._port).tokens()).holder(_KIND, digest, shown)
        if holder is None or not holder.principal.admits(request.address):
            raise HttpError(401, "invalid_token", "ask for a link, and upload to it")
        native, store = self._port.native(request, holder.principal), _names(digest)[0]
        try:
            await native.trajectory(store)
        except NotFound:
            await native.open(store, TASK, environment={"ttl_seconds": _KEPT_SECONDS})
        await _replaced(native, store, request.chunks(MAX_UPLOAD_BYTES))
        return HttpResponse(200, {})


async def bring(native: NativeCalls, digest: str, builder: str, folder: str) -> None:
    """Copy the files of a hash into a folder of the trajectory of a build. Raises InvalidRequest without them."""
    store = await _store(native, digest)
    if store is None:
        raise InvalidRequest("the files of a COPY step were not uploaded")
    async with native.pack(store, _FOLDER) as archive:
        query = {"path": folder}
        await native.call("files_unpack", builder, query=query, pieces=archive.chunks)


async def _replaced(native: NativeCalls, store: str, pieces: AsyncIterator[bytes]) -> None:
    """Unpack an archive; its folder has the final name once it is complete."""
    draft = f"{WORKSPACE}/draft-{token_hex(8)}"
    try:
        await native.call("files_unpack", store, query={"path": draft}, pieces=pieces)
        try:
            await native.move(store, draft, _FOLDER, replace=False)
        except Conflict:  # of an earlier upload
            await native.remove(store, _FOLDER, recursive=True)
            await native.move(store, draft, _FOLDER, replace=False)
    except BaseException:
        with suppress(TangramError, HttpError):
            await native.remove(store, draft, recursive=True)
        raise


async def _store(native: NativeCalls, digest: str) -> str | None:
    """Return the trajectory that holds files; None before their upload. Raises InvalidRequest."""
    for name in _names(digest):
        with suppress(NotFound, Conflict):
            if (await native.trajectory(name)).state == "open":
                await native.stat(name, _FOLDER)
                return name
    return None


def _names(digest: str) -> tuple[str, str]:
    """Return the names of the trajectory that holds files: of today, and of yesterday. Raises InvalidRequest."""
    if not _HASH.fullmatch(digest):
        raise InvalidRequest(f"{digest[:40]!r} is no hash of files")
    day = datetime.now(UTC).toordinal()
    return f"{TASK}-files-{digest}-{day}", f"{TASK}-files-{digest}-{day - 1}"
