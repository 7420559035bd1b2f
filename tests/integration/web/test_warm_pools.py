"""Prepared environments in the configuration of a pool: its files, REST, form, and the page of workers."""

from __future__ import annotations

from typing import Any

import pytest

from domain.errors import InvalidRequest
from tangram_web.audit.services import SYSTEM
from tangram_web.configuration.forms import SpecForm
from tangram_web.lib import scheduler_client
from tangram_web.pools import applying, manifests, services
from tangram_web.pools.selectors import current_config

FILE = """
apiVersion: tangram/v1
kind: Pool
metadata: {name: default}
spec: {warm: {"swe:1": 8, "": 2}}
"""


@pytest.fixture(autouse=True)
def site(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "wait_until_in_force", lambda _: None)
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)


def test_a_file_states_it_and_an_export_gives_it_back() -> None:
    applying.apply(manifests.parse(FILE), actor=SYSTEM)

    assert current_config().pools["default"].warm == {"swe:1": 8, "": 2}
    exported = manifests.to_yaml(manifests.plain(manifests.specs_of(current_config())))
    assert applying.changes(manifests.parse(exported), current_config(), prune=True) == []


def test_a_file_without_it_prepares_none() -> None:
    applying.apply(manifests.parse(FILE), actor=SYSTEM)
    applying.apply(manifests.parse(FILE.replace('warm: {"swe:1": 8, "": 2}', "")), actor=SYSTEM)

    assert current_config().pools["default"].warm == {}


@pytest.mark.parametrize("number", ["-1", "many", "1001", "1.5"])
def test_a_number_that_is_none_is_refused_by_its_place(number: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        manifests.parse(FILE.replace("8", number))
    assert refused.value.pointer.startswith("/spec/warm")


def test_rest_sets_and_shows_it() -> None:
    services.pool_update(actor=SYSTEM, name="default", warm={"swe:1": 3})

    assert current_config().pools["default"].warm == {"swe:1": 3}
    with pytest.raises(InvalidRequest) as refused:
        services.pool_update(actor=SYSTEM, name="default", warm={"swe:1": "three"})
    assert refused.value.pointer.startswith("/warm")


def test_the_form_takes_it_as_yaml() -> None:
    form = SpecForm("Pool", {}, {"name": "default", "policy": "malleable", "node_grace_seconds": "60",
                                 "node_dead_seconds": "600", "warm": "{'swe:1': 8}"})  # fmt: skip

    assert form.is_valid(), form.errors
    assert form.document()["spec"]["warm"] == {"swe:1": 8}
