"""Verbs on rollouts and backends: what they send, and what they refuse with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from domain.backends import LlmBackend
from domain.errors import Unavailable
from domain.rollout_events import BackendsChanged
from tangram_web.accounts.models import Role
from tangram_web.audit.models import AuditEntry
from tangram_web.lib import scheduler_client
from tangram_web.records.models import RolloutRecord
from tests.integration.web import test_operations as operations
from tests.integration.web.test_operations import ASKED, address, reported

pytestmark = pytest.mark.django_db
world, browser = operations.world, operations.browser


def test_a_backend_is_changed_as_the_api_changes_it(browser: Any, redis_bus: Any) -> None:
    operator = browser(Role.OPERATOR, everywhere=True)
    for verb in (
        ("backend", "drain"),
        ("backend", "remove"),
        ("backends", "add"),
        ("backends", "clear"),
    ):
        target, given, _ = ASKED[verb]
        operator.post(address(verb), {"target": target, **given})

    b1 = LlmBackend(name="b1", address="http://10.0.0.1:8000", seats=4, drained=True)
    added = LlmBackend(name="10.0.0.7:8000", address="http://10.0.0.7:8000", seats=8)
    assert reported(redis_bus) == [
        BackendsChanged(pool="policy", put=(b1,)), BackendsChanged(pool="policy", removed=("b1",)),
        BackendsChanged(pool="policy", put=(added,)), BackendsChanged(pool="policy", clear=True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"address": "ftp://x"}, "is no http:// address"),
        ({"address": "http://a:1", "name": "a b"}, "name"),
        ({"address": ""}, "required"),
        ({"address": "http://a:1", "seats": "0"}, "greater than or equal to 1"),
    ],
)
def test_an_impossible_backend_is_refused_with_the_reason(
    browser: Any, given: dict[str, str], says: str
) -> None:
    form = {"target": "policy", "seats": "4", **given}
    answer = browser(Role.OPERATOR, everywhere=True).post("/act/backends/add/", form)

    assert answer.status_code in (409, 422)
    assert says in answer.content.decode()
    assert AuditEntry.objects.count() == 0


def test_a_pool_of_backends_may_begin_on_the_page_and_an_unknown_one_is_not_cleared(
    browser: Any,
) -> None:
    operator = browser(Role.OPERATOR, everywhere=True)

    begins = operator.get("/act/backends/add/", {"target": "new"})
    cleared = operator.post("/act/backends/clear/", {"target": "new", "typed": "new"})

    assert "which begins to exist" in begins.content.decode()
    assert cleared.status_code == 409
    assert operator.get("/act/backends/add/", {"target": "no name"}).status_code == 404
    assert operator.get("/act/backend/drain/", {"target": "policy/b9"}).status_code == 404


def test_a_parked_rollout_is_not_parked_again_and_another_is_not_resumed(browser: Any) -> None:
    submitter = browser(Role.SUBMITTER)

    assert submitter.post("/act/rollout/park/", {"target": "rol_2"}).status_code == 409
    assert submitter.post("/act/rollout/resume/", {"target": "rol_1"}).status_code == 409
    RolloutRecord.objects.filter(pk="rol_1").update(state="finished", outcome="completed")
    gone = submitter.post("/act/rollout/cancel/", {"target": "rol_1", "reason": ""})
    assert gone.status_code == 409
    assert "has finished: completed. Nothing was changed." in gone.content.decode()
    assert AuditEntry.objects.count() == 0


def test_without_a_scheduler_no_backend_is_changed(
    browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = browser(Role.OPERATOR, everywhere=True)

    def refuse(**_: Any) -> None:
        raise Unavailable("the scheduler does not answer")

    monkeypatch.setattr(scheduler_client, "rollouts", refuse)
    answer = operator.post("/act/backend/drain/", {"target": "policy/b1"})

    assert answer.status_code == 503
    assert "the scheduler does not answer. Nothing was changed." in answer.content.decode()


def test_operators_of_a_project_change_its_own_pool_with_addresses_of_their_networks(
    browser: Any, redis_bus: Any
) -> None:
    operator = browser(Role.OPERATOR)  # of the project ``default`` alone

    def add(pool: str, host: str) -> int:
        form = {"target": pool, "address": f"http://{host}:8000", "name": "b", "seats": "4"}
        return int(operator.post("/act/backends/add/", form).status_code)

    assert add("policy@default", "10.1.2.3") == 302
    assert add("policy@default", "169.254.169.254") == 409
    assert add("policy@default", "redis.internal") == 409
    assert add("policy@other", "10.1.2.3") == 404
    assert add("policy", "10.1.2.3") == 403
    assert operator.post("/act/backend/drain/", {"target": "policy/b1"}).status_code == 403
    [event] = reported(redis_bus)
    assert (event.pool, event.put[0].address) == ("policy@default", "http://10.1.2.3:8000")
    [entry] = AuditEntry.objects.all()
    assert (entry.target, entry.project) == ("backends/policy@default", "default")
