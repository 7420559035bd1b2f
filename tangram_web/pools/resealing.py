"""Encryption of the secrets that rows hold: of earlier versions once, under a new key after a rotation.

Secrets are in the specs of services, fleets and resources, and in the snapshots of all revisions. Equal texts
become equal texts, so that the changes between two revisions stay the same. Revisions are append-only;
their encryption is the one thing that changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

from django.db import models, transaction

from tangram_web.lib.sealing import CONFIGURATION, Unsealable, reseal, unseal
from tangram_web.pools.models import ConfigRevision, FleetRow, GpuServiceRow, Resource

log = logging.getLogger(__name__)

#: Takes the text of a secret and returns its new text.
Change = Callable[[str], str]
_UNREADABLE: Final = "a secret of %s is encrypted under a key that is not known; set it again"


def reseal_configuration() -> int:
    """Encrypt all secrets under the current key; return how many rows have changed.

    A secret that no known key opens stays as it is.
    """
    changed = 0
    change = cache(_resealed)
    with transaction.atomic():
        for model, member in (
            (GpuServiceRow, "spec"),
            (FleetRow, "spec"),
            (Resource, "spec"),
            (ConfigRevision, "snapshot"),
        ):
            # Not its own manager: that of revisions refuses updates.
            rows: models.QuerySet[Any] = models.QuerySet(model)
            changed += change_rows(rows, member, change)
    return changed


def unreadable() -> list[str]:
    """Return the objects of the configuration in force with a secret that no known key opens."""
    lost: list[str] = []
    for model in (GpuServiceRow, FleetRow, Resource):
        rows: models.QuerySet[Any] = models.QuerySet(model)
        for row in rows:
            try:
                with_secrets(row.spec, lambda text: unseal(text, CONFIGURATION))
            except Unsealable:
                lost.append(f"{row._meta.verbose_name} {row.pk}")
    return lost


def change_rows(rows: Iterable[Any], member: str, change: Change) -> int:
    """Apply ``change`` to the secrets in a column of ``rows``; return how many rows differ."""
    changed = 0
    for row in rows:
        before = getattr(row, member)
        after = with_secrets(before, change)
        if after != before:
            models.QuerySet(type(row)).filter(pk=row.pk).update(**{member: after})
            changed += 1
    return changed


def with_secrets(data: Any, change: Change) -> Any:
    """Return a spec or a snapshot, as JSON, with ``change`` applied to its secrets."""
    if not isinstance(data, dict):
        return data
    found = dict(data)
    if isinstance(data.get("env"), dict):
        found["env"] = _changed(data["env"], change)
    if isinstance(data.get("headers"), dict):
        found["headers"] = _changed(data["headers"], change)
    if isinstance(data.get("api"), dict):
        found["api"] = with_secrets(data["api"], change)
    for member in ("services", "apis"):
        if isinstance(data.get(member), dict):
            found[member] = {name: with_secrets(e, change) for name, e in data[member].items()}
    return found


def _changed(values: dict[str, Any], change: Change) -> dict[str, Any]:
    return {name: change(text) if isinstance(text, str) else text for name, text in values.items()}


def _resealed(text: str) -> str:
    try:
        return reseal(text, CONFIGURATION)
    except Unsealable:
        log.warning(_UNREADABLE, "the configuration")
        return text
