"""Paths and users of a sandbox: what relative paths, ``~`` and a user's name mean in its environment.

Rules
1. A path is absolute, or relative to the home of the user: ``user`` below ``/home``, or ``/root``. The home is made
   with its first use; in an environment without a tree of its own it is the workspace.
2. ``..`` is resolved by the text alone; the native calls then refuse a path that leaves the environment.
3. An environment has one user. The name that a request gives chooses the home and is reported as the owner.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections import OrderedDict
from typing import Final

from domain.errors import Conflict, Gone, InvalidRequest, NotFound
from facades.e2b.sandbox import OpenSandbox
from scheduler.runtime.gateway.http import HttpRequest

DEFAULT_USER: Final = "user"
#: Home where the environment has no files outside of it.
WORKSPACE: Final = "/workspace"
_KNOWN: Final = 10_000


def user_of(request: HttpRequest) -> str:
    """Return the user that a request names by basic authentication, or in its query."""
    kind, _, text = request.header(b"authorization").partition(" ")
    if kind.lower() == "basic":
        try:
            name = base64.b64decode(text, validate=True).decode().partition(":")[0]
        except (binascii.Error, UnicodeDecodeError):
            raise InvalidRequest("Authorization: Basic is not base64 of USER:") from None
        if name:
            return name
    return request.query().get("username") or DEFAULT_USER


class Homes:
    """Homes of users, made once; what this process knows of them may be lost."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    async def of(self, sandbox: OpenSandbox, user: str) -> str:
        """Return the home of a user. Raises what making it raises, but not that it lies outside the workspace."""
        key = (await sandbox.native.project(), sandbox.name, user)
        known = self._known.get(key)
        if known is not None:
            return known
        home = "/root" if user == "root" else f"/home/{DEFAULT_USER}"
        try:
            await sandbox.native.make_directory(sandbox.name, home)
        except (NotFound, Conflict, Gone):
            raise
        except InvalidRequest:
            home = WORKSPACE
        self._known[key] = home
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return home


def resolved(path: str, home: str) -> str:
    """Return a path as an absolute one. Raises InvalidRequest for the home of another user."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    elif path.startswith("~"):
        raise InvalidRequest(f"{path!r}: only ~ and ~/… are expanded")
    full = posixpath.normpath(posixpath.join(home, path))
    return "/" + full.lstrip("/")
