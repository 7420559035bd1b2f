"""A program in Ray finds the Tangram that is published there, or reads what to do."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from tangram_client.ray import NotPublished, connect


class FakeRay:
    """In place of the modules of Ray: whether the process is connected, and what is stored."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.connected, self.stored = True, dict[bytes, bytes]()
        ray, experimental, store = map(
            ModuleType, ("ray", "ray.experimental", "ray.experimental.internal_kv")
        )
        vars(ray)["is_initialized"] = lambda: self.connected
        vars(store)["_internal_kv_list"] = self._list
        vars(store)["_internal_kv_get"] = lambda key, namespace: self.stored.get(key)
        vars(experimental)["internal_kv"] = store
        for module in (ray, experimental, store):
            patch.setitem(sys.modules, module.__name__, module)

    def _list(self, prefix: str, namespace: str) -> list[bytes]:
        assert (prefix, namespace) == ("access/", "tangram")
        return list(self.stored)

    def publish(self, installation: str, port: int) -> None:
        access = {"url": f"http://127.0.0.1:{port}", "token": "tgm_secret"}
        self.stored[f"access/{installation}".encode()] = json.dumps(access).encode()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return FakeRay(monkeypatch)


def test_the_one_that_is_published_is_connected_once_for_the_process(ray: FakeRay) -> None:
    ray.publish("main", 8001)
    client = connect()
    assert client.url == "http://127.0.0.1:8001"
    assert connect() is connect("main") is client


def test_one_of_several_is_named(ray: FakeRay) -> None:
    ray.publish("main", 8001)
    ray.publish("trials", 8002)
    with pytest.raises(NotPublished, match="name one of main, trials"):
        connect()
    assert connect("trials").url == "http://127.0.0.1:8002"


def test_an_error_names_the_cure(ray: FakeRay) -> None:
    with pytest.raises(NotPublished, match="give its node group the option client"):
        connect()
    ray.publish("main", 8001)
    with pytest.raises(NotPublished, match="there is main"):
        connect("other")
    ray.connected = False
    with pytest.raises(NotPublished, match=r"call ray\.init"):
        connect()
