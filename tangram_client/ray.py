"""Ray: a program of a Ray cluster finds the Tangram whose node workers are on it.

    @ray.remote(num_cpus=0)
    def score(name: str) -> float | None:
        tangram = connect()
        with tangram.trajectory(name, task="swe") as environment:
            return environment.exec("pytest -q", cpu=[1, 2, 4], reward="exit_code").reward

The launcher of a node group with the engine ``ray`` and the option ``client`` publishes URL and token in the cluster's key-value
store. Each program of the cluster can read them, as it can read everything there: publish a token that may only submit.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tangram_client.client import Client
from tangram_client.errors import TangramClientError
from tangram_client.integrations.clients import process_client

#: As in `managers.launch.ray_helper`.
_NAMESPACE: Final = "tangram"
_PREFIX: Final = "access/"


class NotPublished(TangramClientError):
    """No Tangram is published in this Ray cluster, or several are."""


def connect(installation: str | None = None, *, project: str | None = None) -> Client:
    """Return the client of this process for the Tangram of the cluster; all calls return the same one, so leave it open.

    ``installation`` chooses one of several Tangrams. Raises NotPublished, with the cure; ImportError without Ray.
    """
    import ray

    if not ray.is_initialized():
        raise NotPublished("this process is not connected to Ray: call ray.init(address=…) before")
    published = _published()
    if not published:
        raise NotPublished(
            "no Tangram is published in this Ray cluster: give its node group the option client (docs/doors/ray.md),"
            " or use tangram_client.Client with a URL and a token"
        )
    if installation is None and len(published) > 1:
        raise NotPublished(
            f"several Tangrams are published in this Ray cluster: name one of {', '.join(sorted(published))}"
        )
    name = next(iter(published)) if installation is None else installation
    if name not in published:
        raise NotPublished(
            f"Tangram {name} is not published in this Ray cluster; there is {', '.join(sorted(published))}"
        )
    access = published[name]
    return process_client(access["url"], access["token"], project)


def _published() -> dict[str, Any]:
    """Return installation → URL and token."""
    from ray.experimental import internal_kv

    found = {}
    for key in internal_kv._internal_kv_list(_PREFIX, namespace=_NAMESPACE):
        value = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
        if value is not None:
            found[key.decode().removeprefix(_PREFIX)] = json.loads(value)
    return found
