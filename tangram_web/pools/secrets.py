"""Write-only members of the configuration: variables of GPU services, headers of APIs.

Rules
1. Values are sealed (`tangram_web.lib.sealing`) before they are stored or compared. Rows, revisions,
   Redis, the journal and orders to nodes hold the sealed text; the node worker that starts the service
   or sends the call opens it, and so needs the same key.
2. Pages, files, REST and the audit show a marker. A marker in a file that is applied keeps the value that
   is set; it is refused where none is set. Sealed text from outside is refused.
3. A value equal to the one that is set keeps its sealed text, so that applying a file twice, or rolling
   back, changes nothing.
4. Names of variables and headers are no secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from domain.apis import ApiConfig
from domain.errors import InvalidRequest
from domain.fleets import FleetSpec
from domain.inventory import Config
from domain.manifest import ResourceSpec
from domain.services import GpuService
from tangram_web.lib.sealing import (
    CONFIGURATION,
    PREFIX,
    Unsealable,
    is_marker,
    marker,
    seal,
    unseal,
)

#: Kind and name → spec.
Wanted = Mapping[tuple[str, str], Any]
#: Takes the pointer and the text of a secret, and returns its new text.
Change = Callable[[str, str], str]


def sealed(wanted: Wanted, config: Config, *, from_outside: bool) -> dict[tuple[str, str], Any]:
    """Return the specs with sealed secrets, where ``config`` is in force.

    ``from_outside``: a user wrote them, so they hold no sealed text. Raises InvalidRequest.
    """
    return {
        (kind, name): sealed_spec(
            spec, known_secrets(config, kind, name), f"{kind} {name!r}", from_outside=from_outside
        )
        for (kind, name), spec in wanted.items()
    }


def sealed_spec(spec: Any, known: Mapping[str, str], what: str, *, from_outside: bool) -> Any:
    """Return ``spec`` with sealed secrets; ``known`` are those that are set. Raises InvalidRequest."""

    def change(pointer: str, text: str) -> str:
        name = pointer.rpartition("/")[2]
        if from_outside and text.startswith(PREFIX):
            problem = f"{what}: {name} begins with {PREFIX}, which is reserved; give the value"
            raise InvalidRequest(problem, pointer=pointer)
        if is_marker(text):
            if name not in known:
                problem = (
                    f"{what}: {name} is {text}, which keeps the value that is set, but none is set"
                )
                raise InvalidRequest(f"{problem}; give the value", pointer=pointer)
            return known[name]
        return _with_known(text, known.get(name), f"{what}: {name}", pointer)

    return with_secrets(spec, change)


def with_secrets(spec: Any, change: Change) -> Any:
    """Return ``spec`` with ``change`` applied to each of its secrets; any other value as it is."""
    if isinstance(spec, GpuService | FleetSpec):
        return msgspec.structs.replace(spec, env=_changed(spec.env, "/spec/env", change))
    if isinstance(spec, ResourceSpec) and spec.api is not None:
        return msgspec.structs.replace(spec, api=with_secrets(spec.api, change))
    if isinstance(spec, ApiConfig):
        headers = _changed(spec.headers, "/spec/api/headers", change)
        return msgspec.structs.replace(spec, headers=headers)
    return spec


def masked_spec(spec: Any) -> Any:
    """Return ``spec`` as it is shown."""
    return with_secrets(spec, lambda _, text: marker(text))


def as_typed(value: Any, config: Config) -> Any:
    """Return JSON-like data with secrets as an editor had them: markers for those of ``config``.

    Other sealed texts are what the editor typed, so they become plain again.
    """
    specs = [*config.services.values(), *config.fleets.values(), *config.apis.values()]
    known = {text for each in specs for text in _texts(each)}

    def typed(part: Any) -> Any:
        if isinstance(part, str) and part.startswith(PREFIX):
            return marker(part) if part in known else unseal(part, CONFIGURATION)
        if isinstance(part, dict):
            return {name: typed(each) for name, each in part.items()}
        return [typed(each) for each in part] if isinstance(part, list) else part

    return typed(value)


def known_secrets(config: Config, kind: str, name: str) -> Mapping[str, str]:
    """Return the secrets of one object that are set, by name."""
    if kind == "GpuService" and name in config.services:
        return config.services[name].env
    if kind == "Fleet" and name in config.fleets:
        return config.fleets[name].env
    if kind == "Resource" and name in config.apis:
        return config.apis[name].headers
    return {}


def _with_known(text: str, known: str | None, what: str, pointer: str) -> str:
    """Return the sealed form of ``text``: that of ``known`` when both are equal."""
    try:
        plain = unseal(text, CONFIGURATION)
    except Unsealable:
        if text == known:
            return text  # as unreadable as before
        cure = "set its key in TANGRAM_SECRET_KEY_FALLBACKS, or give the value"
        problem = f"{what} is encrypted under a key that is not known: {cure}"
        raise InvalidRequest(problem, pointer=pointer) from None
    if known is not None and _is(known, plain):
        return known
    return text if text.startswith(PREFIX) else seal(plain, CONFIGURATION)


def _is(known: str, plain: str) -> bool:
    try:
        return known.startswith(PREFIX) and unseal(known, CONFIGURATION) == plain
    except Unsealable:
        return False


def _changed(values: Mapping[str, str], pointer: str, change: Change) -> dict[str, str]:
    return {name: change(f"{pointer}/{name}", text) for name, text in values.items()}


def _texts(spec: Any) -> list[str]:
    values = spec.headers if isinstance(spec, ApiConfig) else spec.env
    return list(values.values())
