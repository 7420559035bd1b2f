"""Problems of the system over Redis: one process judges, all readers see the same, each incident is announced once."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import time
from typing import Any

import msgspec
import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone
from msgspec import structs
from rest_framework.test import APIClient

from domain.events import NodeLost, NodeReturned
from domain.principals import Scope
from tangram_web.accounts.models import Membership, Role
from tangram_web.audit.models import AuditEntry
from tangram_web.lib import bus
from tangram_web.lib.sealing import seal
from tangram_web.live.access import Sight
from tangram_web.live.frames import FrameFold
from tangram_web.live.publisher import FramePublisher
from tangram_web.live.topic_store import save_snapshots, snapshot_key, stored_snapshot
from tangram_web.live.topics import TopicFrame
from tangram_web.pools.models import Project
from tangram_web.problems.facts import Condition
from tangram_web.problems.judge import ProblemState, SystemProblem
from tangram_web.problems.reading import problem_lines
from tangram_web.problems.stored import ProblemStore, StoredProblems
from tangram_web.problems.submitters import submitters
from tangram_web.problems.watch import CALM_SECONDS, FOREIGN_SECONDS, JUDGE_SECONDS, ProblemWatch
from tangram_web.records.models import ActionRecord
from tangram_web.webhooks.models import PURPOSE, Delivery, Endpoint
from tangram_web.webhooks.signing import new_secret
from tests.redis_commands import commands_of
from tests.unit.live.journal import Journal

pytestmark = pytest.mark.django_db(transaction=True)

FAILING = Condition(
    kind="task_failing", subject="lab/verify", severity="warning", title="Task verify is failing",
    brief="task verify failing", detail="80 of 100 actions in 10 min.", project="lab", affected=80,
    owner="project lab", verb="Pause task…", verb_link="/act/task/pause/?target=lab%2Fverify",
)  # fmt: skip
LOST = Condition(
    kind="node_lost", subject="n1", severity="critical", title="Node n1 is lost",
    brief="node n1 lost", detail="It held 12 actions.", affected=12, affected_word="actions",
    affected_link="/actions/?q=node%3An1", verb="Retire node…",
    verb_link="/act/node/retire/?target=n1", evidence="What it held",
    evidence_link="/actions/?q=node%3An1", marks=("pool/default",), mark="node lost",
)  # fmt: skip


class Layer:
    """A channel layer without listeners."""

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Send nothing."""


@pytest.fixture
def journal() -> Journal:
    """A node with an action."""
    journal = Journal()
    journal.join("n1")
    journal.submit("a1")
    journal.grant("a1")
    return journal


def publish(client: Any, journal: Journal, at: float) -> None:
    """Publish the frames of a journal as if they were made at a time of the wall clock."""
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)
    frames = [
        TopicFrame(each.topic, each.seq, each.revision, each.at, at, each.body, each.backlog)
        for each in fold.frames(journal.at).values()
    ]
    save_snapshots(client, bus.keys().prefix, frames)


def store(client: Any, *conditions: Condition, **changes: Any) -> list[SystemProblem]:
    """Store problems that are judged just now."""
    now = time()
    given: dict[str, Any] = {
        "state": ProblemState.HELD, "began_at": now, "raised_at": now, "seen_at": now,
    }  # fmt: skip
    problems = [SystemProblem(condition=each, **given | changes) for each in conditions]
    ProblemStore(client, bus.keys()).save(StoredProblems(at=now, problems=problems))
    return problems


def endpoint(**changes: Any) -> Endpoint:
    events = ["problem.raised", "problem.cleared"]
    secret = seal(new_secret(), PURPOSE)
    given = {"project_id": "default", "url": "https://hooks.example.com/", "events": events}
    return Endpoint.objects.create(secret=secret, **given | changes)


def sent() -> list[tuple[str, str]]:
    rows = Delivery.objects.order_by("id").values_list("event", "body")
    return [(event, json.loads(body)["data"]["title"]) for event, body in rows]


def member_of(project: str) -> Client:
    user = get_user_model().objects.create_user(project)
    made, _ = Project.objects.get_or_create(name=project, default_pool_id="default")
    Membership.objects.create(user=user, project=made, role=Role.VIEWER)
    client = Client()
    client.force_login(user)
    return client


def test_a_snapshot_of_another_version_is_waited_for_after_a_start_and_is_an_error_later(
    defaults: None, redis_bus: Any, journal: Journal
) -> None:
    def publish_without_a_member(at: float) -> None:
        publish(redis_bus, journal, at)
        key = snapshot_key(bus.keys().prefix, "overview")
        stored = msgspec.msgpack.decode(redis_bus.get(key))
        del stored["pools"][0]["nodes_lost"]
        redis_bus.set(key, msgspec.msgpack.encode(stored))

    now = time()
    with FramePublisher(Layer(), redis_bus, bus.keys().prefix) as publisher:
        watch = ProblemWatch(redis_bus, bus.keys(), publisher)
        publish_without_a_member(now)
        watch.try_turn(now)
        publish(redis_bus, journal, now + 1)
        watch.try_turn(now + 1)
        assert stored_snapshot(redis_bus, "resources")["rows"]
        publish_without_a_member(now + FOREIGN_SECONDS + 1)
        with pytest.raises(KeyError):
            watch.try_turn(now + FOREIGN_SECONDS + 1)


def test_an_incident_is_announced_once_over_restarts_and_over_many_judgements(
    defaults: None, redis_bus: Any, journal: Journal
) -> None:
    endpoint()
    endpoint(url="https://quotas.example.com/", problems=["quota_exhausted"])
    now = time()
    redis_bus.set(bus.keys().leader, "loop-1")

    def judged(at: float) -> None:
        """A process that starts, judges twice and ends."""
        publish(redis_bus, journal, at)
        with FramePublisher(Layer(), redis_bus, bus.keys().prefix) as publisher:
            watch = ProblemWatch(redis_bus, bus.keys(), publisher)
            assert watch.turn(at)
            assert watch.turn(at + 1)
            watch.close()

    judged(now)
    assert sent() == []

    journal.write([NodeLost(node="n1", incarnation=1)], [])
    judged(now + 10)
    judged(now + 20)
    assert sent() == [("problem.raised", "Node n1 is lost")]

    # Redis forgets what was announced; the outbox knows the incident by its name.
    keys = ProblemStore(redis_bus, bus.keys())
    (known,) = keys.load().problems
    keys.save(StoredProblems(at=now, problems=[structs.replace(known, announced=False)]))
    judged(now + 25)
    assert sent() == [("problem.raised", "Node n1 is lost")]

    journal.write([NodeReturned(node="n1", incarnation=1)], [])
    judged(now + 30)
    judged(now + 40)
    judged(now + 50)
    assert sent() == [("problem.raised", "Node n1 is lost"), ("problem.cleared", "Node n1 is lost")]


def test_a_calm_system_is_judged_by_few_commands_and_a_problem_at_the_full_pace(
    defaults: None, redis_bus: Any, journal: Journal
) -> None:
    now = time()
    redis_bus.set(bus.keys().leader, "loop-1")
    idle = Journal()
    idle.join("n1")
    publish(redis_bus, idle, now)
    with FramePublisher(Layer(), redis_bus, bus.keys().prefix) as publisher:
        watch = ProblemWatch(redis_bus, bus.keys(), publisher)
        assert watch.turn(now)
        commands = commands_of(redis_bus, lambda: watch.turn(now + 1))
        assert watch.pause_seconds == CALM_SECONDS
        assert sum(commands.values()) <= 18
        assert commands["set"] == 1  # the claim: what is unchanged is not stored again
        publish(redis_bus, journal, now + 2)
        assert watch.turn(now + 2)
        assert watch.pause_seconds == JUDGE_SECONDS
        watch.close()


def test_a_killed_web_process_is_a_problem_until_another_one_begins_there(
    defaults: None, redis_bus: Any, journal: Journal
) -> None:
    now = time()
    redis_bus.set(bus.keys().leader, "loop-1")

    def show(name: str, pid: int, began: float, at: float) -> None:
        facts = {"role": "web", "host": "h1", "pid": pid, "began": began, "at": at}
        redis_bus.hset(bus.keys().workers, name, json.dumps(facts | {"delay_seconds": 0.0}))

    def states(*moments: float) -> list[tuple[str, str]]:
        """A judge that starts, judges at these moments and ends."""
        with FramePublisher(Layer(), redis_bus, bus.keys().prefix) as publisher:
            watch = ProblemWatch(redis_bus, bus.keys(), publisher)
            for at in moments:
                publish(redis_bus, journal, at)
                assert watch.turn(at)
            watch.close()
        return [
            (each.id, each.state.value)
            for each in ProblemStore(redis_bus, bus.keys()).load().problems
            if each.condition.kind == "web_dead"
        ]

    show("web@h1:1:aa", 1, now - 100, now)
    assert states(now, now + 5) == []
    assert states(now + 11) == [("web_dead:h1", "pending")]
    redis_bus.hdel(bus.keys().workers, "web@h1:1:aa")  # too old for other readers
    assert states(now + 17) == [("web_dead:h1", "new")]

    show("web@h1:2:bb", 2, now + 18, now + 18)
    assert states(now + 19, now + 25) == [("web_dead:h1", "cleared")]
    redis_bus.hdel(bus.keys().workers, "web@h1:2:bb")  # it ends in order
    assert states(now + 27, now + 40, now + 50) == [("web_dead:h1", "cleared")]


def test_one_process_judges_until_its_claim_ends(redis_bus: Any) -> None:
    claims = ProblemStore(redis_bus, bus.keys())

    assert claims.claim("a")
    assert not claims.claim("b")
    assert claims.claim("a")
    claims.release("b")
    assert not claims.claim("b")
    claims.release("a")
    assert claims.claim("b")


def test_the_api_lists_what_a_token_may_see(
    caller: Callable[..., APIClient], redis_bus: Any
) -> None:
    store(redis_bus, LOST, FAILING)

    everything = caller(Scope.READ).get("/api/v1/problems").json()
    other = caller(Scope.READ, project="other").get("/api/v1/problems").json()

    assert everything["health"] == "critical"
    assert everything["headline"] == "2 problems. One holds up 12 actions: node n1 lost."
    assert [each["id"] for each in everything["problems"]] == [
        "node_lost:n1",
        "task_failing:lab/verify",
    ]
    assert everything["problems"][0]["help"] == "docs/problems.md#node-lost"
    assert [each["id"] for each in other["problems"]] == ["node_lost:n1"]
    assert "verify" not in json.dumps(other)


def test_without_a_judgement_of_late_the_health_is_unknown(
    caller: Callable[..., APIClient], redis_bus: Any
) -> None:
    client = caller(Scope.READ)
    assert client.get("/api/v1/problems").json()["headline"] == "No data yet."

    ProblemStore(redis_bus, bus.keys()).save(StoredProblems(at=time() - 60))

    found = client.get("/api/v1/problems").json()
    assert (found["health"], found["problems"]) == ("unknown", [])
    assert found["headline"] == "No data for 60 s."


def test_readiness_has_each_problem_in_one_line(redis_bus: Any) -> None:
    store(redis_bus, LOST, FAILING)

    assert problem_lines(Sight()) == [
        "critical: Node n1 is lost. It held 12 actions.",
        "warning: Task verify is failing. 80 of 100 actions in 10 min.",
    ]


def test_metrics_count_problems_by_kind_and_severity(
    caller: Callable[..., APIClient], redis_bus: Any
) -> None:
    store(redis_bus, LOST, FAILING)

    text = caller(Scope.READ).get("/metrics").content.decode()

    assert 'tangram_problem{kind="node_lost",severity="critical"} 1.0' in text
    assert 'tangram_problem{kind="blocker",severity="warning"} 0.0' in text
    assert 'tangram_problem_actions{kind="task_failing"} 80.0' in text
    assert "verify" not in text


def staff() -> Client:
    user = get_user_model().objects.create_user("ops", is_staff=True)
    client = Client()
    client.force_login(user)
    return client


def test_the_overview_lists_problems_with_verb_evidence_and_link(
    defaults: None, redis_bus: Any
) -> None:
    store(redis_bus, LOST, FAILING)
    text = staff().get("/").content.decode()

    assert text.index("Node n1 is lost") < text.index("Task verify is failing")
    assert 'href="/act/node/retire/?target=n1"' in text
    assert 'href="/act/task/pause/?target=lab%2Fverify"' in text
    assert '<a class="number affected" href="/actions/?q=node%3An1"><b>12 actions</b></a>' in text
    assert "2 problems. One holds up 12 actions: node n1 lost." in text
    assert '<b class="count crit" title="problems">2</b>' in text


def test_a_member_sees_what_all_share_and_no_names_of_other_projects(
    defaults: None, redis_bus: Any
) -> None:
    store(redis_bus, LOST, FAILING)
    other, lab = member_of("other"), member_of("lab")

    for path in ("/", "/glossary/", "/problems/"):
        assert "verify" not in other.get(path).content.decode()
    shown = other.get("/").content.decode()
    assert "Node n1 is lost" in shown
    assert "Retire node" not in shown
    assert "Acknowledge…" not in shown
    assert "Task verify is failing" in lab.get("/").content.decode()
    refused = {
        "node_lost:n1": 403,
        "task_failing:lab/verify": 200,  # as for a problem that does not exist
    }
    for problem, status in refused.items():
        answer = other.get("/problems/acknowledge/", {"problem": problem})
        assert answer.status_code == status
        assert "verify" not in answer.content.decode()


def test_an_acknowledgement_is_audited_and_leaves_the_banner(
    defaults: None, redis_bus: Any
) -> None:
    store(redis_bus, LOST)
    client, page = staff(), "/problems/acknowledge/"
    assert "node n1 lost" in client.get("/glossary/").content.decode()

    without = client.post(page, {"problem": "node_lost:n1", "note": " "})
    done = client.post(page, {"problem": "node_lost:n1", "note": "the disk is replaced"})

    assert (without.status_code, done.status_code) == (422, 302)
    entry = AuditEntry.objects.get(verb="acknowledge")
    assert (entry.target, entry.actor) == ("problem/node_lost:n1", "ops")
    said = ProblemStore(redis_bus, bus.keys()).acknowledgements()["node_lost:n1"]
    assert (said.by, said.note) == ("ops", "the disk is replaced")

    acknowledged = {"state": ProblemState.ACKNOWLEDGED, "acknowledged": said}
    store(redis_bus, LOST, **acknowledged)
    assert "node n1 lost" not in client.get("/glossary/").content.decode()
    assert "the disk is replaced" in client.get("/").content.decode()


def test_notify_me_of_problems_opens_the_form_with_their_events_chosen(
    defaults: None, redis_bus: Any
) -> None:
    client = staff()
    user = get_user_model().objects.get()
    user.is_superuser = True
    user.save()
    assert "/webhooks/?events=problem.raised&amp;events=problem.cleared#add" in (
        client.get("/").content.decode()
    )
    form = client.get("/webhooks/?events=problem.raised&events=problem.cleared").content.decode()

    for event in ("problem.raised", "problem.cleared"):
        assert f'value="{event}" checked' in form
    assert 'value="node.lost" checked' not in form
    made = {
        "project": "default", "url": "https://hooks.example.com/", "problems": ["node_lost"],
        "events": ["problem.raised", "problem.cleared"],
    }  # fmt: skip
    client.post("/webhooks/", made)
    assert Endpoint.objects.get().problems == ["node_lost"]


def test_trends_of_longer_ranges_are_stored_and_read_by_all_who_see_every_project(
    defaults: None, redis_bus: Any, journal: Journal
) -> None:
    now = time()
    redis_bus.set(bus.keys().leader, "loop-1")
    for turn in range(3):  # each a process of its own
        at = now - 200 + turn * 100
        publish(redis_bus, journal, at)
        with FramePublisher(Layer(), redis_bus, bus.keys().prefix) as publisher:
            watch = ProblemWatch(redis_bus, bus.keys(), publisher)
            assert watch.turn(at)
            watch.close()
    client, member = staff(), member_of("lab")

    found = client.get("/resources.json?trend=10800").json()
    points = [each for each in found["rows"]["pool/default"] if each]
    assert found["step_seconds"] == 90
    assert points == [[0.25, 0.25]] * 2
    assert client.get("/resources.json?trend=86400").status_code == 200
    assert client.get("/resources.json?trend=1800").status_code == 400
    assert member.get("/resources.json?trend=10800").json()["rows"] == {}


def test_the_choice_of_the_trend_is_in_the_address_and_keeps_the_rest_of_it(
    defaults: None, redis_bus: Any
) -> None:
    client = staff()
    shown = client.get("/?range=3600&trend=10800").content.decode()
    plain = client.get("/").content.decode()

    assert '<a href="/?range=3600&amp;trend=10800#resources" aria-current="true">3 h</a>' in shown
    assert '<a href="/?range=3600#resources">30 min</a>' in shown
    assert '<a href="?range=86400&amp;trend=10800">24 h</a>' in shown
    assert '<a href="/#resources" aria-current="true">30 min</a>' in plain
    assert '<a href="/?trend=86400#resources">24 h</a>' in plain


def test_the_submitter_of_a_project_is_the_one_that_its_latest_actions_name(defaults: None) -> None:
    def submitted(number: int, project: str, by: str | None) -> None:
        ActionRecord.objects.create(
            id=f"act_{number}", project=project, task="t", kind="noop", submitted_by=by,
            submitted_at=timezone.now(),
        )  # fmt: skip

    by: dict[str, list[str | None]] = {
        "one": ["ci", "ci"], "several": ["ci", "ada"], "before": [None, "ci"]
    }  # fmt: skip
    each = [(project, name) for project, names in by.items() for name in names]
    for number, (project, name) in enumerate(each):
        submitted(number, project, name)

    assert submitters() == {"one": "ci"}
