"""What-if: the changes that a replay of the last minutes can show, and the simulation that is started."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import msgspec
import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.action import Kind
from domain.allocation import Allocation, Hosting
from domain.apis import CallSpec
from domain.codec import encode
from domain.decisions import Grant
from domain.events import ChunkReport
from domain.ids import ResourceId
from simulator import job
from simulator.request import read_request
from tangram_web.configuration.what_if import assumptions, playability
from tangram_web.lib import bus, scheduler_client
from tangram_web.live.gpu_history import STEP_SECONDS, GpuHistoryStore, GpuSnapshot
from tangram_web.pools.applying import Change
from tangram_web.pools.models import ConfigRevision
from tangram_web.records.models import NodeRecord
from tangram_web.simulations import inputs
from tangram_web.simulations.inputs import inflated
from tangram_web.simulations.models import Simulation, SimulationInput
from tests.integration.web.journal import Journal, a_finish, a_grant, a_report, an_action

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SERVICE = {"engine": "process", "degrees": [{"gpus": 1, "memory_bytes": 1024}],
           "command": ["serve", "{port}"]}  # fmt: skip


def text(kind: str, name: str, spec: str) -> str:
    return f"apiVersion: tangram/v1\nkind: {kind}\nmetadata: {{name: '{name}'}}\nspec: {spec}\n"


POLICY = text("Pool", "default", "{policy: paper}")
LIMIT = text("Resource", "api:demo", "{limit_units: 2}")
SHARES = text("Resource", "api:demo", "{limit_units: 8, shares: {default: {nominal_units: 3}}}")
QUOTA = text("Resource", "api:demo", "{limit_units: 8, quotas: [{units: 5, window_seconds: 60}]}")
DRAIN = text("Node", "n2", "{drained: true}")


@pytest.fixture
def admin(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    for name, cores in (("n1", 4), ("n2", 2)):
        cpu = {"capacity": cores * 1000, "groups": [list(range(cores))]}
        gpu = {"capacity": 2000, "groups": [[0, 1]], "memory_bytes": 2**36,
               "residents": [["reward", [0]]]}  # fmt: skip
        resources = {"cpu": cpu, "gpu": gpu, "license": {"capacity": 1000}}
        NodeRecord.objects.create(name=name, pool="default", joined_at=NOW, resources=resources)
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


@pytest.fixture
def minutes(redis_bus: Any) -> None:
    """An action of each of two kinds ran lately; the call restored its service first."""
    journal = Journal()
    journal.run(an_action(1, cost={"cpu": (1000,), "api:demo": (1000,)}))
    call = an_action(2, kind=Kind.CALL, cost={"gpu": (1000,)}, key="gpu",
                     call=CallSpec("service:reward", "GET", "/"))  # fmt: skip
    journal.submit(call)
    journal.write([], [a_grant(call.id)])
    report = a_report(call.id)
    report.chunk = ChunkReport(restore_seconds=2.5)
    journal.write([report], [a_finish(call)])
    for _, entry in journal.entries:
        redis_bus.xadd("tangram:journal", {"e": encode(entry)})


def written(redis_bus: Any, journal: Journal, seconds_ago: int) -> None:
    """Write a journal as if its last entry was written so long ago, each a millisecond apart."""
    began = int((time() - seconds_ago) * 1000) - len(journal.entries)
    for number, (_, entry) in enumerate(journal.entries):
        redis_bus.xadd("tangram:journal", {"e": encode(entry)}, id=f"{began + number}-0")


def played(admin: Client, *texts: str) -> Any:
    answer = admin.post("/configuration/try/", {"text": "---\n".join(texts), "project": "default"})
    assert answer.status_code == 302, answer.content.decode()
    found = Simulation.objects.get()
    assert answer.headers["Location"] == f"/simulate/{found.pk}/"
    assert read_request(found.request).policies == ("as it is", "as it would be")
    return found


@pytest.mark.usefixtures("minutes")
def test_policies_limits_quotas_and_shares_are_played_side_by_side(admin: Client) -> None:
    found = played(admin, POLICY, SHARES)

    now, then = (
        found.request["variants"][name]["config"] for name in ("as it is", "as it would be")
    )
    assert [each["pools"]["default"].get("policy", "minimum") for each in (now, then)] == [
        "malleable", "paper",
    ]  # fmt: skip
    assert "shares" not in now
    assert then["shares"]["api:demo"]["default"]["nominal"] == 3000
    assert "2 actions of pool default" in found.source
    # Nothing was saved for it.
    assert ConfigRevision.objects.count() == 1


@pytest.mark.usefixtures("minutes")
@pytest.mark.parametrize(
    ("change", "member"), [(LIMIT, "resources"), (QUOTA, "limits")], ids=["limit", "quota"]
)
def test_each_kind_of_limit_differs_between_the_two(
    admin: Client, change: str, member: str
) -> None:
    variants = played(admin, change).request["variants"]

    assert (
        variants["as it is"]["config"].get(member) != variants["as it would be"]["config"][member]
    )


@pytest.mark.usefixtures("minutes")
def test_services_are_played_with_the_restores_that_were_seen(admin: Client) -> None:
    service = text("GpuService", "reward", "{engine: process, command: [serve, '{port}'], "
                   "degrees: [{gpus: 1, memory_bytes: 1024}], quarantined: true}")  # fmt: skip
    admin.post("/configuration/review/", {"text": service, "revision": "1", "save": "1"})

    found = played(admin, service.replace("quarantined: true", "max_concurrency: 4"))

    now, then = (found.request["variants"][name] for name in ("as it is", "as it would be"))
    assert now["gpus"] == 4
    assert now["restores"] == then["restores"] == {"reward": 2.5}
    assert then["config"]["services"]["reward"]["max_concurrency"] == 4
    assert "quarantined" not in now["config"]["services"]["reward"]
    page = admin.get(f"/simulate/{found.pk}/").content.decode()
    assert "Not simulated" in page
    assert "GpuService reward quarantined: " in page


@pytest.mark.usefixtures("minutes")
def test_a_change_that_would_stop_actions_for_ever_is_left_out_and_named(admin: Client) -> None:
    found = played(admin, POLICY, LIMIT.replace("limit_units: 2", "limit_units: 0"))

    then = found.request["variants"]["as it would be"]["config"]
    assert then["resources"] == {"api:demo": 8000}
    assert "no grants" in found.request["untold"][0]


@pytest.mark.usefixtures("minutes")
def test_a_smaller_pool_is_played_with_fewer_nodes(admin: Client) -> None:
    variants = played(admin, DRAIN).request["variants"]

    assert [each["nodes"] for each in variants.values()] == [2, 1]


@pytest.mark.usefixtures("minutes")
def test_a_pool_without_nodes_is_not_played(admin: Client) -> None:
    both = DRAIN + "---\n" + DRAIN.replace("n2", "n1")

    answer = admin.post("/configuration/try/", {"text": both, "project": "default"})

    assert answer.status_code == 422
    assert "all actions would wait forever" in answer.content.decode()


def test_without_anything_played_it_says_so(admin: Client) -> None:
    def refused(said: str) -> str:
        answer = admin.post("/configuration/try/", {"text": said, "project": "default"})
        assert answer.status_code == 422
        return str(answer.content.decode())

    assert "no action of pool default was submitted" in refused(POLICY)
    assert "nothing changes" in refused("")
    assert not Simulation.objects.exists()


@pytest.mark.usefixtures("minutes")
def test_unused_resources_and_other_projects_are_not_replayed(admin: Client) -> None:
    def refused(said: str) -> str:
        answer = admin.post("/configuration/try/", {"text": said, "project": "default"})
        assert answer.status_code == 422
        return str(answer.content.decode())

    unused = text("Resource", "api:unused", "{limit_units: 8}")
    assert "Resource api:unused: no action of the last minutes uses it" in refused(unused)
    breaker = text("Resource", "api:demo", "{limit_units: 8, breaker: {failures: 9}}")
    assert "Resource api:demo breaker: answers of an API are replayed" in refused(breaker)
    assert not Simulation.objects.exists()


def test_each_change_that_is_not_played_says_why() -> None:
    def change(kind: str, name: str, before: Any, after: Any) -> Change:
        return Change("update", kind, name, before, after)

    reported = playability(
        [
            change("Pool", "other", {}, {"policy": "paper"}),
            change("Pool", "default", {}, {"paused": True}),
            change("Project", "p", {}, {"default_pool": "other"}),
            change("Node", "elsewhere", None, {"drained": True}),
            change("Resource", "api:new", None, {"limit_units": 1}),
            change("Resource", "api:gone", {"limit_units": 1}, None),
            change("Resource", "api:shut", {"limit_units": 1}, {"limit_units": 0}),
            change("GpuService", "s", {"source": "a"}, {"source": "b"}),
        ],
        "default",
        {"Resource": {"api:gone", "api:shut"}, "GpuService": {"s"}, "Node": {"n1"}},
    )

    assert not reported.anything
    assert len(reported.not_played) == 8
    assert "Pool default paused: " in reported.not_played[1]
    assert reported.not_played[5].endswith("actions that use it would wait forever")


@pytest.mark.usefixtures("minutes")
def test_nodes_are_played_as_they_are(admin: Client) -> None:
    found = played(admin, POLICY)

    machines = found.request["machines"]
    assert machines["n1"]["cpu"]["groups"] == [[0, 1, 2, 3]]
    assert machines["n2"]["cpu"]["capacity"] == 2000
    # What was in memory when they joined is long gone, and no simulator knows licenses.
    assert machines["n1"].keys() == {"cpu", "gpu"}
    assert "residents" not in machines["n1"]["gpu"]
    assert "in memory on no chunk at first" in found.request["assumed"][-1]
    page = admin.get(f"/simulate/{found.pk}/").content.decode()
    assert "as they are" in page
    assert "Initial conditions" in page


def test_entries_before_the_window_lead_up_to_it(admin: Client, redis_bus: Any) -> None:
    earlier, later = Journal(), Journal()
    for number in range(3):
        earlier.run(an_action(number, cost={"cpu": (1000,), "api:demo": (1000,)}))
    later.at = earlier.at + 100.0
    later.run(an_action(10, cost={"cpu": (1000,)}))
    written(redis_bus, earlier, 400)
    written(redis_bus, later, 1)

    found = played(admin, POLICY)

    assert found.request["counts_from"] == later.entries[0][1].at
    assert "1 actions of pool default" in found.source
    assert found.request["assumed"][0].startswith(
        "3 actions of the 1.8 minutes before the window are played"
    )


def test_the_replay_begins_empty_when_too_much_came_before(
    admin: Client, redis_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, later = Journal(), Journal()
    for number in range(30):
        earlier.run(an_action(number, cost={"cpu": (1000,)}))
    later.at = earlier.at + 100.0
    later.run(an_action(40, cost={"cpu": (1000,)}))
    written(redis_bus, earlier, 400)
    written(redis_bus, later, 1)
    monkeypatch.setattr(inputs, "MOST_JOURNAL_BYTES", 4096)

    found = played(admin, POLICY)

    assert "1 actions of pool default" in found.source
    assert not any("before the window are played" in said for said in found.request["assumed"])


def test_services_that_are_in_memory_are_not_restored_again(
    admin: Client, redis_bus: Any, tmp_path: Path
) -> None:
    """One was restored before all that is played, of the other the map of GPUs alone tells."""
    spec = "{engine: process, command: [serve, '{port}'], degrees: [{gpus: 1, memory_bytes: 1024}]}"
    both = "---\n".join(text("GpuService", name, spec) for name in ("reward", "judge"))
    admin.post("/configuration/review/", {"text": both, "revision": "1", "save": "1"})
    there = {"node": "n2", "service": "judge", "units": "1", "since": 0, "used": 0, "uses": 1}
    at = int(time() - 30) // STEP_SECONDS * STEP_SECONDS
    GpuHistoryStore(redis_bus, bus.keys()).save([GpuSnapshot(at, [], [there], [])])
    journal = Journal()
    for number, service in enumerate(("reward", "reward", "judge")):
        call = an_action(number, kind=Kind.CALL, cost={"gpu": (1000,)}, key="gpu",
                         call=CallSpec(f"service:{service}", "GET", "/"))  # fmt: skip
        node, unit = ("n1", 0) if service == "reward" else ("n2", 0)
        hosting = Hosting(service, 1024, cached=service == "reward")
        held = Allocation(ResourceId(f"gpu:{node}"), 1000, (unit,), hosting=hosting)
        journal.submit(call)
        journal.write([], [Grant(call.id, node, (held,))])
        journal.write([a_report(call.id, node=node)], [a_finish(call)])
        journal.at += 10.0
    written(redis_bus, journal, 1)

    found = played(admin, text("Pool", "default", "{policy: minimum}"))

    machines = found.request["machines"]
    assert machines["n1"]["gpu"]["residents"] == [["reward", [0]]]
    assert machines["n2"]["gpu"]["residents"] == [["judge", [1]]]
    assert "in memory on 2 chunks at first" in found.request["assumed"][-1]
    trace = tmp_path / "trace"
    trace.write_bytes(inflated(bytes(SimulationInput.objects.get().content)))
    outcome = job.play(read_request(found.request), trace, lambda *_: None)
    assert [(run.result.whole.actions, run.result.restores) for run in outcome.runs] == [(3, 0)] * 2


def test_a_long_quota_begins_with_what_the_scheduler_says_and_the_journal_does_not(
    admin: Client, redis_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas = [{"units": 10, "window_seconds": 60}, {"units": 100}]
    spec = QUOTA.replace("[{units: 5, window_seconds: 60}]", str(quotas).replace("'", ""))
    admin.post("/configuration/review/", {"text": spec, "revision": "1", "save": "1"})
    uses = [{"used": 4.0}, {"used": 90.0}]
    monkeypatch.setattr(
        scheduler_client, "status", lambda: {"resources": {"api:demo": {"quotas": uses}}}
    )
    earlier, later = Journal(), Journal()
    earlier.run(an_action(1))
    later.at = earlier.at + 100.0
    call = an_action(2, kind=Kind.LEASE, cost={"api:demo": (1000,)})
    later.submit(call)
    held = Allocation(ResourceId("api:demo"), 1000)
    later.write([], [Grant(call.id, None, (held,))])
    later.write([a_report(call.id)], [a_finish(call)])
    written(redis_bus, earlier, 400)
    written(redis_bus, later, 1)

    found = played(admin, spec.replace("100", "200"))

    # One of the ninety is played; the short quota has forgotten by then whatever was before.
    assert found.request["used"] == {"api:demo": [0, 89_000]}
    assert any("89 units of api:demo were used before that" in said
               for said in found.request["assumed"])  # fmt: skip


def test_the_page_says_where_usage_is_not_reported(admin: Client, minutes: None) -> None:
    found = played(admin, QUOTA.replace("window_seconds: 60", "window_seconds: 86400"))
    admin.post("/configuration/review/", {
        "text": QUOTA.replace("window_seconds: 60", "window_seconds: 86400"),
        "revision": "1", "save": "1"})  # fmt: skip
    assert "used" not in found.request or found.request["used"] == {}

    Simulation.objects.all().delete()
    found = played(admin, LIMIT)

    assert any("earlier use of api:demo is not known" in said for said in found.request["assumed"])


def test_an_empty_start_is_reported() -> None:
    said = assumptions(before=0, before_seconds=0.0, used={}, unknown=(), unseen={"judge"})

    assert said[0].startswith("at first no unit is held and no quota is used")
    assert "no restore of judge is recorded" in said[1]


@pytest.mark.usefixtures("minutes")
def test_the_result_says_what_was_tried_on_what_and_how_to_apply_it(
    admin: Client, tmp_path: Path
) -> None:
    found = played(admin, LIMIT, POLICY)
    (tmp_path / "trace").write_bytes(inflated(bytes(SimulationInput.objects.get().content)))
    result = job.play(read_request(found.request), tmp_path / "trace", lambda *_: None)
    found.outcome, found.state = msgspec.to_builtins(result), "finished"
    found.save()

    page = admin.get(f"/simulate/{found.pk}/")

    text = page.content.decode()
    assert "limit of api:demo <del>8</del> → <ins>2</ins>" in text
    assert "policy of pool default <del>malleable</del> → <ins>paper</ins>" in text
    assert 'href="/act/resource/limit/?target=api%3Ademo&amp;limit_units=2"' in text
    assert 'href="/act/pool/policy/?target=default&amp;policy=paper"' in text
    assert "This is a what-if. Nothing was changed." in text
    assert "How far to trust it: the simulation of it as it is" in text
    assert f"{page.context['window']}, in " in text
    assert page.context["compared"].paired
    assert {row.beside for row in page.context["measures"]} != {"–"}
    assert all(bar.simulated is (bar.name != "as it ran") for bar in page.context["bars"])


def test_a_result_of_an_earlier_version_is_shown_without_rows(admin: Client) -> None:
    result = {"actions": 1, "runs": [], "plots": []}
    request = {"workload": "recorded", "policies": ["minimum"], "seeds": [0], "malleable": False,
               "nodes": 1, "cores": 1}  # fmt: skip
    run = {"policy": "minimum", "seed": 0, "wall_seconds": 1.0, "result": {
        "whole": {"actions": 1, **{name: dict.fromkeys(("mean", "p50", "p95", "p99", "most"), 1.0)
                  for name in ("act", "queue", "overhead", "execution")}},
        "trajectory_act": {"mean": 1.0}, "granted": {"cpu": 0.5}, "efficiency": 1.0, "outcomes": {}}}  # fmt: skip
    old = Simulation.objects.create(
        project_id="default", request=request, state="finished", outcome={**result, "runs": [run]}
    )

    page = admin.get(f"/simulate/{old.pk}/")

    assert page.status_code == 200
    assert "This is a what-if" not in page.content.decode()
