"""Each verb at a page: previewed, refused to who may not, done with its audit row, undone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner
from django.contrib.auth import get_user_model
from django.test import Client

from contract.fleet_status import FleetsStatus, FleetStatus, FleetWorkerStatus, RouteStatus
from contract.rollout_status import BackendStatus, RolloutsStatus
from contract.selector_status import SelectorsStatus, SelectorStageView, SelectorView
from domain.codec import decode_command, unpack_fields
from domain.events import (
    ActionCancelRequested,
    ConfigApplied,
    TaskCancelRequested,
    TaskPaused,
    TaskPrioritised,
    TrajectoryFinished,
)
from domain.fleets import FleetEngine, FleetWorker, PlacementName
from domain.selectors import Parallelism, SelectorStage
from tangram_client.cli import verbs
from tangram_web.accounts.models import Membership, Role
from tangram_web.audit.models import AuditEntry
from tangram_web.lib import bus, scheduler_client
from tangram_web.operations.verbs import VERBS
from tangram_web.pools.manifests import parse
from tangram_web.pools.models import GpuServiceRow, NodeDrain, Pool, Resource, SelectorRow
from tangram_web.records.models import (
    ActionRecord,
    NodeRecord,
    RolloutRecord,
    TaskRecord,
    TrajectoryRecord,
)

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MARKUP = "<script>alert(1)</script>"
SERVICE = {"engine": "process", "degrees": [{"gpus": 1, "memory_bytes": 1024}],
           "command": ["serve", "{port}"]}  # fmt: skip
#: Verb → target, what the form has, what the audit says was done.
ASKED: dict[tuple[str, str], tuple[str, dict[str, str], str]] = {
    ("action", "cancel"): ("act_1", {"reason": "a mistake"}, "cancel"),
    ("actions", "cancel"): ("act_1,act_2", {"reason": "mistakes"}, "cancel"),
    ("tasks", "priority"): ("default/swe,act_1", {"priority": "5"}, "prioritise"),
    ("task", "pause"): ("default/swe", {}, "pause"),
    ("task", "resume"): ("default/swe", {}, "resume"),
    ("task", "priority"): ("default/swe", {"priority": "5"}, "prioritise"),
    ("task", "cancel"): ("default/swe", {"typed": "default/swe"}, "cancel"),
    ("rollout", "cancel"): ("rol_1", {"reason": "a mistake"}, "cancel"),
    ("rollout", "park"): ("rol_1", {"reason": "later"}, "park"),
    ("rollout", "resume"): ("rol_2", {}, "resume"),
    ("backend", "drain"): ("policy/b1", {}, "drain"),
    ("backend", "resume"): ("policy/b2", {}, "resume"),
    ("backend", "remove"): ("policy/b1", {"typed": "policy/b1"}, "remove"),
    ("backends", "add"): ("policy", {"address": "http://10.0.0.7:8000/v1/", "seats": "8"}, "add"),
    ("backends", "clear"): ("policy", {"typed": "policy"}, "clear"),
    ("worker", "drain"): ("m/w1", {}, "drain"),
    ("selector", "pin"): ("long", {"degree": "tp2"}, "pin"),
    ("selector", "unpin"): ("long", {}, "unpin"),
    ("worker", "undrain"): ("m/w2", {}, "undrain"),
    ("trajectory", "pin"): ("default/t", {"worker": "m/w2"}, "pin"),
    ("trajectory", "unpin"): ("default/t", {}, "unpin"),
    ("node", "drain"): ("n1", {"running": "goes on"}, "drain"),
    ("node", "resume"): ("n2", {}, "resume"),
    ("node", "forget"): ("n9", {"typed": "n9"}, "forget"),
    ("node", "retire"): ("n1", {"running": "ends", "typed": "n1"}, "retire"),
    ("pool", "pause"): ("default", {"typed": "default"}, "update"),
    ("pool", "resume"): ("idle", {}, "update"),
    ("pool", "resize"): ("default", {"nodes": "0", "typed": "default"}, "resize"),
    ("pool", "policy"): ("default", {"policy": "fixed(4)"}, "update"),
    ("pool", "share"): (
        "default",
        {"resource": "cpu", "project": "default", "nominal_units": "2"},
        "update",
    ),
    ("resource", "limit"): ("api:demo", {"limit_units": "3"}, "set"),
    ("resource", "quota"): ("api:metered", {"period": "60 s", "units": "5"}, "set"),
    ("resource", "share"): (
        "api:demo",
        {"project": "default", "nominal_units": "2", "lend_units": "1"},
        "set",
    ),
    ("service", "quarantine"): ("reward", {"typed": "reward"}, "quarantine"),
    ("service", "restore"): ("reward", {}, "restore"),
    ("service", "evict"): ("reward", {}, "evict"),
    ("service", "release"): ("judge", {}, "release"),
}
STEERED = {"default/swe": {"paused": True, "priority": 2}}


@pytest.fixture
def world(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something for every verb. The scheduler says that the task is paused, when it is asked."""
    TaskRecord.objects.create(key="default/swe", project="default", name="swe", opened_at=NOW)
    TrajectoryRecord.objects.create(key="default/t", project="default", name="t", task="swe",
                                    opened_at=NOW, node="n1")  # fmt: skip
    for number, state in ((1, "running"), (2, "queued")):
        ActionRecord.objects.create(
            id=f"act_{number}", project="default", task="swe", kind="exec", state=state,
            submitted_at=NOW, node="n1" if number == 1 else None, pool="default",
            cost={"cpu": [1], "api:demo": [4]},
        )  # fmt: skip
    for name in ("n1", "n2"):
        NodeRecord.objects.create(name=name, pool="default", joined_at=NOW)
    NodeRecord.objects.create(name="n9", pool="default", joined_at=NOW, state="lost")
    NodeDrain.objects.create(node="n2")
    Pool.objects.create(name="idle", paused=True)
    quotas = [{"units": 3, "window_seconds": 60}, {"units": 100}]
    Resource.objects.create(name="api:metered", limit_units=8, spec={"quotas": quotas})
    for name, shut in (("reward", False), ("judge", True)):
        GpuServiceRow.objects.create(name=name, spec={**SERVICE, "quarantined": shut})
    for number, state in ((1, "assigned"), (2, "parked")):
        RolloutRecord.objects.create(
            id=f"rol_{number}", project="default", task="swe", state=state, submitted_at=NOW
        )
    served = [
        BackendStatus("policy", name, number, f"http://10.0.0.{number}:8000", 4, drained=drained)
        for number, name, drained in ((1, "b1", False), (2, "b2", True))
    ]
    status = RolloutsStatus(backends=served, pools={"policy": 2})
    monkeypatch.setattr(scheduler_client, "rollouts", lambda **_: status)
    workers = [
        FleetWorkerStatus(FleetWorker(number=number, name=name, url="", drained=drained))
        for number, name, drained in ((1, "w1", False), (2, "w2", True))
    ]
    route = RouteStatus("default/t", "pinned", "", 1, pin=1)
    fleet = FleetStatus("m", FleetEngine.VLLM, PlacementName.HEDGED, workers=workers, route=route)
    monkeypatch.setattr(scheduler_client, "fleets", lambda *_, **__: FleetsStatus([fleet]))
    selector = SelectorView(
        "long", "", (Parallelism(1), Parallelism(2)), (1024,), (8,), None, 1.5, 0.15,
        [SelectorStageView(SelectorStage.ROLLOUT, Parallelism(1), "first", "", None, None, 0.0, 0.0, 0.0)],
        SelectorStage.ROLLOUT, Parallelism(1), False, None, [],
    )  # fmt: skip
    SelectorRow.objects.create(name="long", spec={"degrees": [{"tp": 1, "pp": 1, "dp": 1}]})
    monkeypatch.setattr(scheduler_client, "selectors", lambda *_, **__: SelectorsStatus([selector]))
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)


@pytest.fixture
def browser(world: None) -> Callable[..., Client]:
    """A browser of a user with a role, everywhere or in the default project alone."""

    def sign_in(role: Role, *, everywhere: bool = False, **options: Any) -> Client:
        staff = everywhere and role in (Role.OPERATOR, Role.ADMIN)
        user = get_user_model().objects.create_user(
            f"{role}", is_staff=staff, is_superuser=everywhere and role == Role.ADMIN
        )
        if not everywhere:
            Membership.objects.create(user=user, project_id="default", role=role)
        client = Client(**options)
        client.force_login(user)
        return client

    return sign_in


def address(verb: tuple[str, str]) -> str:
    return f"/act/{verb[0]}/{verb[1]}/"


def reported(client: Any) -> list[Any]:
    return [
        decode_command(message)
        for _, fields in client.xrange(bus.keys().inbox)
        for message in unpack_fields(fields)
        if type(decode_command(message)).__name__ != "StatusQueried"
    ]


def test_every_verb_is_asked_here() -> None:
    assert ASKED.keys() == VERBS.keys()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", VERBS, ids="-".join)
def test_a_verb_is_shown_done_and_audited(
    browser: Any, redis_bus: Any, verb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if verb == ("task", "resume"):
        monkeypatch.setattr(
            scheduler_client, "status", lambda: {"steered_tasks": STEERED, "pools": {}}
        )
    admin, (target, given, written) = browser(Role.ADMIN, everywhere=True), ASKED[verb]

    shown = admin.get(address(verb), {"target": target})
    assert shown.status_code == 200
    assert "tangram " in shown.content.decode()
    assert AuditEntry.objects.count() == 0

    done = admin.post(address(verb), {"target": target, **given}, follow=True)

    assert done.status_code == 200
    entry = AuditEntry.objects.order_by("-id").first()
    assert entry is not None
    assert (entry.verb, entry.actor, entry.via) == (written, "admin", "web")
    assert entry.request_id
    assert "Done" in done.content.decode()
    assert reported(redis_bus)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("verb", VERBS, ids="-".join)
def test_a_role_does_what_it_may_and_no_more(browser: Any, verb: Any, role: Role) -> None:
    target, given, _ = ASKED[verb]
    order, needed = list(Role), VERBS[verb].role
    of_project = verb[0] in ("action", "actions", "task", "tasks", "rollout")
    member = browser(role, everywhere=not of_project)

    answer = member.post(address(verb), {"target": target, **given})

    reaches = order.index(role) >= order.index(needed)
    assert (answer.status_code in (200, 302)) is reaches
    if not reaches:
        assert answer.status_code in (403, 404)
        assert AuditEntry.objects.count() == 0


def test_a_stranger_does_not_learn_that_the_action_exists(browser: Any) -> None:
    ActionRecord.objects.filter(pk="act_1").update(project="secret")
    member = browser(Role.ADMIN)

    answer = member.post("/act/action/cancel/", {"target": "act_1", "reason": ""})

    assert answer.status_code == 404
    assert AuditEntry.objects.count() == 0


def test_the_effect_is_counted_by_the_server(browser: Any) -> None:
    admin = browser(Role.ADMIN, everywhere=True)

    task = admin.get("/act/task/pause/", {"target": "default/swe"}).context["effect"]
    node = admin.get("/act/node/drain/", {"target": "n1"}).context["effect"]
    limit = admin.post("/act/resource/limit/",
                       {"target": "api:demo", "limit_units": "3", "look": "1"})  # fmt: skip

    assert task.counts == {"waiting": 1, "granted": 0, "running": 1}
    assert node.counts["open trajectories"] == 1
    assert "environment" in node.warning
    assert limit.context["effect"].counts["stranded"] == 1
    assert "wait forever" in limit.content.decode()
    assert Resource.objects.get(name="api:demo").limit_units == 8


@pytest.mark.django_db(transaction=True)
def test_the_audit_has_what_was_requested(browser: Any, redis_bus: Any) -> None:
    admin = browser(Role.ADMIN, everywhere=True)
    for verb in (("action", "cancel"), ("task", "pause"), ("task", "priority"), ("task", "cancel"),
                 ("node", "retire"), ("pool", "policy")):  # fmt: skip
        target, given, _ = ASKED[verb]
        admin.post(address(verb), {"target": target, **given})

    kinds = [type(each) for each in reported(redis_bus)]

    assert kinds == [
        ActionCancelRequested, TaskPaused, TaskPrioritised, TaskCancelRequested,
        TrajectoryFinished, ActionCancelRequested, ConfigApplied, ConfigApplied,
    ]  # fmt: skip
    assert all(getattr(each, "asked", None) is None for each in reported(redis_bus))


@pytest.mark.parametrize("verb", [v for v in VERBS if VERBS[v].heavy], ids="-".join)
def test_a_heavy_verb_is_not_done_by_one_button(browser: Any, verb: Any) -> None:
    target, given, _ = ASKED[verb]

    answer = browser(Role.ADMIN, everywhere=True).post(
        address(verb), {"target": target, **given, "typed": "something"}
    )

    assert answer.status_code == 422
    assert "to confirm" in answer.content.decode()
    assert AuditEntry.objects.count() == 0


def test_an_operation_on_a_vanished_action_is_refused_with_the_reason(
    browser: Any, redis_bus: Any
) -> None:
    admin = browser(Role.ADMIN, everywhere=True)
    ActionRecord.objects.filter(pk="act_1").update(
        state="finished", outcome="completed", finished_seq=1
    )

    answer = admin.post("/act/action/cancel/", {"target": "act_1", "reason": ""})

    assert answer.status_code == 409
    assert "has finished: completed. Nothing was changed." in answer.content.decode()
    assert AuditEntry.objects.count() == 0
    assert reported(redis_bus) == []


def test_the_line_for_a_shell_says_all_that_the_object_has(browser: Any) -> None:
    admin = browser(Role.ADMIN, everywhere=True)

    looked = admin.post("/act/resource/limit/",
                        {"target": "api:demo", "limit_units": "3", "look": "1"})  # fmt: skip
    shut = admin.get("/act/service/quarantine/", {"target": "reward"})

    assert '"spec":{"limit_units":3}' in looked.context["line"]
    assert '"quarantined":true' in shut.context["line"]
    for line in (looked.context["line"], shut.context["line"]):
        document = line.removeprefix("echo '").removesuffix("' | tangram apply -")
        assert len(parse(document)) == 1


@pytest.mark.parametrize("verb", VERBS, ids="-".join)
def test_the_command_line_takes_each_line(browser: Any, verb: Any) -> None:
    target, given, _ = ASKED[verb]

    looked = browser(Role.ADMIN, everywhere=True).post(
        address(verb), {"target": target, **given, "look": "1"}
    )

    lines = re.split(r" && | \| ", looked.context["line"])
    commands = [words for each in lines if (words := shlex.split(each, comments=True))[0] != "echo"]
    assert commands
    for program, *words in commands:
        assert program == "tangram"
        answer = CliRunner().invoke(
            verbs, [*words, "--help"], prog_name="tangram"
        )  # parsed, and not done
        assert answer.exit_code == 0, answer.output
        assert answer.output.startswith(f"Usage: tangram {words[0]}")


def test_a_quarantined_service_is_not_restored(browser: Any, redis_bus: Any) -> None:
    admin = browser(Role.ADMIN, everywhere=True)

    answer = admin.post("/act/service/restore/", {"target": "judge"})
    admin.post("/act/service/restore/", {"target": "reward"})

    assert answer.status_code == 409
    assert "release it first" in answer.content.decode()
    (submitted,) = reported(redis_bus)
    assert submitted.action.call.target == "service:reward"
    assert submitted.action.cost == {"gpu": (1000,)}


def test_an_operation_is_undone(browser: Any, redis_bus: Any) -> None:
    admin = browser(Role.ADMIN, everywhere=True)
    for verb, undo in (
        (("node", "drain"), "/act/node/resume/?target=n1"),
        (("pool", "policy"), "/act/pool/policy/?target=default&amp;policy=malleable"),
        (("resource", "limit"), "/act/resource/limit/?target=api%3Ademo&amp;limit_units=8"),
        (("task", "pause"), "/act/task/resume/?target=default%2Fswe"),
        (
            ("pool", "share"),
            "/act/pool/share/?target=default&amp;resource=cpu&amp;project=default"
            "&amp;nominal_units=",
        ),
        (
            ("resource", "quota"),
            "/act/resource/quota/?target=api%3Ametered&amp;period=60+s&amp;units=3",
        ),
        (
            ("resource", "share"),
            "/act/resource/share/?target=api%3Ademo&amp;project=default&amp;nominal_units=",
        ),
        (("service", "restore"), "/act/service/evict/?target=reward"),
        (("rollout", "park"), "/act/rollout/resume/?target=rol_1"),
        (("backend", "drain"), "/act/backend/resume/?target=policy%2Fb1"),
        (("worker", "drain"), "/act/worker/undrain/?target=m%2Fw1"),
        (("trajectory", "pin"), "/act/trajectory/unpin/?target=default%2Ft"),
        (("service", "quarantine"), "/act/service/release/?target=reward"),
        (("service", "release"), "/act/service/quarantine/?target=judge"),
    ):
        target, given, _ = ASKED[verb]
        done = admin.post(address(verb), {"target": target, **given}, follow=True)
        assert undo in done.content.decode(), verb


def test_a_pool_is_made_smaller_by_nodes_with_the_least_to_lose_and_larger_by_those(
    browser: Any,
) -> None:
    admin = browser(Role.ADMIN, everywhere=True)
    NodeRecord.objects.create(name="n3", pool="default", joined_at=NOW)
    asked = {"target": "default", "typed": "default"}

    looked = admin.post("/act/pool/resize/", {**asked, "nodes": "1", "look": "1"})
    assert "n3: take no new actions" in looked.content.decode()
    assert looked.context["line"].startswith("tangram node drain n3 --reason ")
    smaller = admin.post("/act/pool/resize/", {**asked, "nodes": "1"}, follow=True)
    assert set(NodeDrain.objects.values_list("node", flat=True)) == {"n2", "n3"}
    assert "/act/pool/resize/?target=default&amp;nodes=2" in smaller.content.decode()

    # n2 was drained by an operator for another reason.
    too_large = admin.post("/act/pool/resize/", {**asked, "nodes": "3"})
    assert too_large.status_code == 409
    admin.post("/act/pool/resize/", {**asked, "nodes": "2"})
    assert list(NodeDrain.objects.values_list("node", flat=True)) == ["n2"]


def test_a_lower_quota_names_the_actions_it_strands_and_shares_name_their_sum(browser: Any) -> None:
    admin = browser(Role.ADMIN, everywhere=True)
    ActionRecord.objects.filter(pk="act_2").update(cost={"api:metered": [3]})

    quota = admin.post("/act/resource/quota/", {
        "target": "api:metered", "period": "60 s", "units": "2", "look": "1"})  # fmt: skip
    share = admin.post("/act/resource/share/", {
        "target": "api:demo", "project": "default", "nominal_units": "9", "look": "1"})  # fmt: skip

    assert quota.context["effect"].counts["stranded"] == 1
    assert '"quotas":[{"units":2.0,"window_seconds":60' in quota.context["line"]
    assert "add up to 9 of 8" in share.content.decode()
    assert '"shares":{"default":{"nominal_units":9}}' in share.context["line"]


def test_an_operation_without_effect_is_reported_and_not_written(browser: Any) -> None:
    admin = browser(Role.ADMIN, everywhere=True)

    answer = admin.post("/act/node/drain/", {"target": "n2", "running": "goes on"})

    assert "Nothing was changed" in answer.content.decode()
    assert AuditEntry.objects.count() == 0


def test_a_verb_whose_word_does_not_reach_the_scheduler_is_not_written(
    browser: Any, settings: Any, tmp_path: Any
) -> None:
    admin = browser(Role.ADMIN, everywhere=True)
    settings.TANGRAM_REDIS_URL = f"unix://{tmp_path}/missing.sock"

    answer = admin.post("/act/task/pause/", {"target": "default/swe"})

    assert answer.status_code == 503
    assert AuditEntry.objects.count() == 0


def test_a_forged_or_framed_request_does_nothing(browser: Any) -> None:
    strict = browser(Role.ADMIN, everywhere=True, enforce_csrf_checks=True)

    forged = strict.post("/act/task/pause/", {"target": "default/swe"})
    shown = strict.get("/act/task/pause/", {"target": "default/swe"})

    assert forged.status_code == 403
    assert AuditEntry.objects.count() == 0
    assert shown.headers["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in shown.headers["Content-Security-Policy"]


def test_markup_stays_text(browser: Any) -> None:
    admin = browser(Role.ADMIN, everywhere=True)

    shown = admin.get("/act/action/cancel/", {"target": "act_1", "reason": MARKUP})
    done = admin.post("/act/action/cancel/", {"target": "act_1", "reason": MARKUP}, follow=True)
    nothing = admin.get("/act/action/cancel/", {"target": MARKUP})

    assert nothing.status_code == 404
    for page in (shown, done, nothing, admin.get("/audit/")):
        assert MARKUP not in page.content.decode()


@pytest.mark.parametrize("target", ["", "\0", "x" * 10_000, "../..", "act_9/"])
def test_nonsense_is_404(browser: Any, target: str) -> None:
    admin = browser(Role.ADMIN, everywhere=True)

    for kind, name in VERBS:
        assert admin.get(f"/act/{kind}/{name}/", {"target": target}).status_code == 404
    assert admin.get("/act/moon/eclipse/", {"target": "x"}).status_code == 404


def test_the_page_of_operating_has_a_way_to_each_verb(browser: Any) -> None:
    operator = browser(Role.OPERATOR, everywhere=True).get("/operate/").content.decode()
    admin = browser(Role.ADMIN, everywhere=True).get("/operate/").content.decode()

    elsewhere = (
        "action",
        "actions",
        "task",
        "tasks",
        "rollout",
        "backend",
        "backends",
        "worker",
        "trajectory",
        "selector",
    )
    of_pages = {verb for verb in VERBS if verb[0] not in elsewhere}
    for kind, name in of_pages:
        path = f"/act/{kind}/{name}/?target="
        assert path in admin
        assert (path in operator) is (VERBS[kind, name].role != Role.ADMIN), path
