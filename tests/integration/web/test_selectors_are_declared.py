"""Selectors of parallelism are declared by files, with their references checked."""

from __future__ import annotations

import pytest

from domain.errors import InvalidRequest
from domain.selectors import Parallelism
from tangram_web.audit.services import SYSTEM
from tangram_web.pools import applying
from tangram_web.pools.manifests import parse
from tangram_web.pools.selectors import current_config
from tangram_web.pools.services import ensure_defaults

pytestmark = pytest.mark.django_db

SERVICE = """
apiVersion: tangram/v1
kind: GpuService
metadata: {name: policy}
spec:
  engine: process
  command: [serve, "{port}"]
  degrees: [{gpus: 1, memory_bytes: 1000}, {gpus: 2, memory_bytes: 1000}]
"""


def selector(spec: str) -> str:
    return f"---\napiVersion: tangram/v1\nkind: Selector\nmetadata: {{name: long}}\nspec: {spec}\n"


def test_a_selector_of_a_service_is_applied_with_it_and_keeps_its_pin() -> None:
    ensure_defaults()

    applying.apply(
        parse(
            SERVICE
            + selector("{target: 'service:policy', degrees: [{tp: 1}, {tp: 2}], pin: {tp: 1}}")
        ),
        actor=SYSTEM,
    )

    (kept,) = current_config().selectors.values()
    assert kept.pin == Parallelism(1)
    assert kept.degrees == (Parallelism(1), Parallelism(2))


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ("{target: 'service:policy', degrees: [{tp: 4}]}", "/degrees/0"),
        ("{target: 'service:other', degrees: [{tp: 1}]}", "/target"),
        ("{target: 'service:policy', degrees: [{tp: 1}, {tp: 1, dp: 2}]}", "/spec/degrees"),
        ("{degrees: [{tp: 1}], pin: {tp: 2}}", "/spec/pin"),
        ("{degrees: [{tp: 1}], contexts: [2048, 1024]}", "/spec/contexts"),
    ],
)
def test_a_selector_that_cannot_decide_is_refused_with_the_member(spec: str, pointer: str) -> None:
    ensure_defaults()

    with pytest.raises(InvalidRequest) as refused:
        applying.apply(parse(SERVICE + selector(spec)), actor=SYSTEM)

    assert refused.value.pointer == pointer


def test_a_service_is_kept_while_a_selector_steers_it() -> None:
    ensure_defaults()
    declared = parse(SERVICE + selector("{target: 'service:policy', degrees: [{tp: 1}]}"))
    applying.apply(declared, actor=SYSTEM)
    without = {key: spec for key, spec in declared.items() if key[0] == "Selector"}

    with pytest.raises(InvalidRequest, match="there is no service 'policy'"):
        applying.apply(without, actor=SYSTEM, prune=True)
