"""The configuration as a file: export, diff, apply, roll back; all of it or nothing."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from domain.codec import decode_command, unpack_fields
from domain.errors import InvalidRequest
from domain.limits import Share
from domain.principals import Scope
from domain.project_limits import ProjectBounds
from tangram_web.audit.models import AuditEntry
from tangram_web.lib import bus
from tangram_web.pools import manifests
from tangram_web.pools.models import ConfigRevision
from tangram_web.pools.selectors import current_config

FILE = """\
apiVersion: tangram/v1
kind: Resource
metadata: {name: "api:search"}
spec:
  limit_units: 20
  quotas:
    - {units: 50, window_seconds: 1, margin_seconds: 0.1}
    - {units: 10000, zone: Europe/Berlin}
  learn_from_units: 2
  shares:
    vision: {nominal_units: 15, lend_units: 5}
    default: {nominal_units: 5, borrow_units: 3}
  api:
    base_url: https://api.example.com/v1
    paths: [/search]
    secret: search-key
    secret_header: Authorization
    secret_prefix: "Bearer "
---
apiVersion: tangram/v1
kind: Pool
metadata: {name: big}
spec: {policy: malleable}
---
apiVersion: tangram/v1
kind: Project
metadata: {name: vision}
spec: {default_pool: big}
---
apiVersion: tangram/v1
kind: Node
metadata: {name: n7}
spec: {drained: true, reason: disk}
"""


@pytest.fixture
def admin(defaults: None, redis_bus: Any, caller: Any) -> Any:
    return caller(Scope.READ, Scope.CONFIG)


def post(client: Any, path: str, text: str = "", **headers: str) -> Any:
    given = {f"HTTP_{name}": value for name, value in headers.items()}
    return client.generic(
        "POST", f"/api/v1/config/{path}", text, content_type="application/yaml", **given
    )


def verbs(answer: Any) -> list[tuple[str, str, str]]:
    assert answer.status_code == 200, answer.content
    return [(each["verb"], each["kind"], each["name"]) for each in answer.json()["changes"]]


def test_a_file_is_put_in_force_as_one_revision(
    admin: Any, redis_bus: Any, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        applied = post(admin, "apply", FILE)

    assert verbs(applied) == [
        ("create", "Pool", "big"),
        ("create", "Project", "vision"),
        ("create", "Resource", "api:search"),
        ("create", "Node", "n7"),
    ]
    config = current_config()
    assert config.revision == applied.json()["revision"] == 2
    assert (config.resources["api:search"], config.limits["api:search"].least) == (20_000, 2000)
    assert config.shares["api:search"]["vision"] == Share(15_000, lend=5000)
    assert config.apis["api:search"].paths == ("/search",)
    assert config.drained_nodes == {"n7"}
    reported = [
        decode_command(message)
        for _, fields in redis_bus.xrange(bus.keys().inbox)
        for message in unpack_fields(fields)
    ]
    assert [command.config for command in reported] == [config]
    assert AuditEntry.objects.filter(verb="apply").count() == 1


def test_applying_an_export_changes_nothing(admin: Any) -> None:
    post(admin, "apply", FILE)
    exported = admin.get("/api/v1/config", HTTP_ACCEPT="application/yaml").content.decode()

    assert verbs(post(admin, "diff?prune=true", exported)) == []
    assert verbs(post(admin, "apply?prune=true", exported)) == []
    assert ConfigRevision.objects.count() == 2
    assert len(list(yaml.safe_load_all(exported))) == 10
    assert "search-key" in exported


def test_a_diff_says_what_would_change_and_changes_nothing(admin: Any) -> None:
    post(admin, "apply", FILE)
    edited = FILE.replace("limit_units: 20", "limit_units: 30").replace(
        "drained: true", "drained: false"
    )

    difference = post(admin, "diff", edited)

    assert verbs(difference) == [("update", "Resource", "api:search"), ("delete", "Node", "n7")]
    (resource, _) = difference.json()["changes"]
    assert (resource["before"]["limit_units"], resource["after"]["limit_units"]) == (20, 30)
    assert current_config().resources["api:search"] == 20_000


def test_pruning_deletes_what_the_file_does_not_name(admin: Any) -> None:
    post(admin, "apply", FILE)
    only_pool = "\n".join(FILE.split("---\n")[1].splitlines())

    pruned = post(admin, "apply?prune=true", only_pool)

    assert verbs(pruned) == [
        ("delete", "Node", "n7"),
        ("delete", "Resource", "stage:run"),
        ("delete", "Resource", "stage:init"),
        ("delete", "Resource", "stage:eval"),
        ("delete", "Resource", "api:search"),
        ("delete", "Resource", "api:demo"),
        ("delete", "Project", "vision"),
    ]
    assert current_config().resources == {}
    assert {"default", "big"} == current_config().pools.keys()


def test_an_earlier_revision_is_restored_as_a_new_one(admin: Any) -> None:
    before = current_config()
    post(admin, "apply", FILE)

    back = post(admin, "revisions/1/rollback")

    assert back.json()["revision"] == 3
    assert replace(current_config(), revision=1) == before
    assert post(admin, "revisions/99/rollback").status_code == 404
    numbers = [each["number"] for each in admin.get("/api/v1/config/revisions").json()]
    assert numbers == [3, 2, 1]
    kept = admin.get("/api/v1/config/revisions/2").json()["documents"]
    assert "api:search" in [each["metadata"]["name"] for each in kept]


def test_an_edit_of_another_revision_is_refused(admin: Any) -> None:
    tag = admin.get("/api/v1/config")["ETag"]
    assert post(admin, "apply", FILE, IF_MATCH=tag).status_code == 200

    stale = post(admin, "apply", FILE.replace("20", "21"), IF_MATCH=tag)

    assert (stale.status_code, stale.json()["code"]) == (412, "stale")
    assert current_config().resources["api:search"] == 20_000
    assert post(admin, "apply", FILE, IF_MATCH="nonsense").status_code == 412


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: [1\nb: 2\n", "line 2, column 2", "expected"),
        # The words are those of libyaml, or of PyYAML alone.
        ("kind: Pool\n\tname: x\n", "line 2, column 1", "character"),
        ("a: " + "[" * 900_000, "line 1, column 67", "nested more than 64 levels deep"),
        (FILE.replace("limit_units: 20", "limit_units: many"), "line 5, column 16", "int"),
        (FILE.replace("units: 50,", "units: 0,"), "line 7, column 15", ">"),
        (FILE.replace("Europe/Berlin", "Mars/Olympus"), "line 8, column 28", "time zone"),
        (FILE.replace("base_url: https", "base_url: ftp"), "line 14, column 15", "http"),
        (FILE.replace("kind: Pool", "kind: Pond"), "line 21, column 7", "kind is one of"),
        (FILE.replace("policy: malleable", "policy: greedy"), "line 23, column 16", "greedy"),
        (FILE.replace("policy: malleable", "polcy: minimum"), "line 23, column 15", "polcy"),
        (FILE.replace("metadata: {name: big}", "metadata: {name: 'b g'}"), "line 22, column 18", "regex"),
        (FILE.replace("tangram/v1\nkind: Pool", "tangram/v9\nkind: Pool"), "line 20, column 13", "v9"),
        (FILE + "---\n" + FILE.split("---\n")[1], "line 35, column 1", "twice"),
        (FILE.replace("limit_units: 20", "limit_units: 20\n  limit_units: 3"), "line 6, column 3", "twice"),
        ("a: &x 1\nb: *x\n", "line 1, column 4", "anchors"),
        ("- 1\n", "line 1, column 1", "a document has"),
        (FILE.replace("window_seconds: 1,", "window_seconds: .nan,"), "line 7, column 35", "not a finite number"),
        (FILE.replace("reason: disk", "reason: 2026-01-01"), "line 33, column 31", "in quotes"),
        (FILE.replace("reason: disk", 'reason: "\\ud800"'), "line 33, column 3", "character"),
        ("? [a]\n: b\n", "line 1, column 3", "a key must be a scalar"),
        (FILE.replace("kind: Pool", "kind: [Pool]"), "line 21, column 7", "kind is one of"),
        (FILE.replace("learn_from_units: 2", "breaker: {failures: 1" + "0" * 20 + "}"), "line 9, column 23", "give 1 to"),
        (FILE.replace('"api:search"', '"license:x"'), "line 7, column 5", "only resources api:"),
        (FILE.replace("default_pool: big", "default_pool: none"), "Project 'vision'", "no pool 'none'"),
    ],
    ids=[
        "broken list", "tab", "deep", "not a number", "out of range", "unknown zone", "bad address",
        "unknown kind", "unknown policy", "unknown member", "bad name", "other version",
        "object twice", "key twice", "anchor", "no mapping", "not a number at all", "a date",
        "half a character", "a list as a key", "kinds", "more failures than can be counted",
        "not an api", "dangling reference",
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_with_its_place_and_nothing_is_applied(
    admin: Any, text: str, place: str, words: str
) -> None:
    before = current_config()

    refused = post(admin, "apply", text)

    assert refused.status_code == 422
    assert place in refused.json()["detail"]
    assert words in refused.json()["detail"]
    assert current_config() == before


@pytest.mark.parametrize("path", ["diff", "apply"])
@pytest.mark.parametrize("text", ["", "# all of it is gone\n"], ids=["nothing", "a comment"])
def test_a_file_without_objects_prunes_nothing(admin: Any, path: str, text: str) -> None:
    """As a pipe brings it whose first half has failed."""
    post(admin, "apply", FILE)
    before = current_config()

    assert post(admin, f"{path}?prune=true", text).status_code == 422
    assert verbs(post(admin, path, text)) == []
    assert current_config() == before


def test_a_huge_file_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        manifests.parse("a" * (1024 * 1024 + 1))


def test_the_schema_has_every_kind_and_accepts_an_export(admin: Any) -> None:
    import jsonschema

    schema = admin.get("/api/v1/config/schema").json()
    post(admin, "apply", FILE)
    for document in admin.get("/api/v1/config").json()["documents"]:
        jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"apiVersion": "tangram/v1", "kind": "Pond"}, schema)


def test_reading_needs_read_and_changing_needs_config(
    defaults: None, redis_bus: Any, caller: Any
) -> None:
    reader, owner = caller(Scope.READ), caller(Scope.READ, Scope.CONFIG, project="default")
    assert post(reader, "diff", FILE).status_code == 200
    assert post(reader, "apply", FILE).status_code == 403
    assert post(owner, "apply", FILE).status_code == 403
    assert post(owner, "revisions/1/rollback").status_code == 403


SHARED = """\
apiVersion: tangram/v1
kind: Pool
metadata: {name: default}
spec:
  shares:
    cpu:
      vision: {nominal_units: 24, lend_units: 8}
      default: {nominal_units: 8, borrow_units: 0}
    gpu:
      vision: {nominal_units: 4}
"""


def test_projects_share_cores_and_gpus_of_a_pool(admin: Any) -> None:
    applied = post(admin, "apply", SHARED)

    assert verbs(applied) == [("update", "Pool", "default")]
    assert current_config().pools["default"].shares == {
        "cpu": {"vision": Share(24_000, lend=8000), "default": Share(8000, borrow=0)},
        "gpu": {"vision": Share(4000)},
    }
    assert verbs(post(admin, "diff", SHARED)) == []
    lowered = SHARED.replace("nominal_units: 24", "nominal_units: 16")
    (change,) = post(admin, "apply", lowered).json()["changes"]
    assert change["after"]["shares"]["cpu"]["vision"]["nominal_units"] == 16
    assert post(admin, "revisions/1/rollback").status_code == 200
    assert current_config().pools["default"].shares == {}


@pytest.mark.parametrize(
    ("mistake", "place"),
    [
        (("nominal_units: 24", "nominal_units: -1"), "line 6, column 5"),
        (("    gpu:", "    memory:"), "memory belongs to environments"),
        (("    gpu:", "    'cpu:n1':"), "no kind of resource"),
        (("lend_units", "lends"), "line 6, column 5"),
    ],
    ids=["less than nothing", "memory", "one node's", "unknown member"],
)
def test_a_broken_share_is_refused_with_its_place(
    admin: Any, mistake: tuple[str, str], place: str
) -> None:
    refused = post(admin, "apply", SHARED.replace(*mistake))

    assert refused.status_code == 422
    assert place in refused.json()["detail"]
    assert current_config().pools["default"].shares == {}


LIMITED = FILE.replace(
    "spec: {default_pool: big}",
    "spec: {default_pool: big, limits: {queued_actions: 50, submissions_per_second: 2.5}}",
)


def test_a_project_has_limits_of_its_own(admin: Any) -> None:
    post(admin, "apply", FILE)
    [difference] = post(admin, "diff", LIMITED).json()["changes"]
    post(admin, "apply", LIMITED)
    own = current_config().projects["vision"].limits
    kept = post(admin, "diff", LIMITED)
    exported = admin.get("/api/v1/config", HTTP_ACCEPT="application/yaml").content.decode()
    [removed] = post(admin, "apply", FILE).json()["changes"]

    limits = {"queued_actions": 50, "submissions_per_second": 2.5}
    assert (difference["kind"], difference["before"].get("limits")) == ("Project", None)
    assert difference["after"]["limits"] == limits
    assert own == ProjectBounds(queued_actions=50, submissions_per_second=2.5)
    assert verbs(kept) == []
    assert {"default_pool": "big", "limits": limits} in [
        each["spec"] for each in yaml.safe_load_all(exported)
    ]
    assert removed["before"]["limits"] == limits
    assert current_config().projects["vision"].limits == ProjectBounds()


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("{queued_actions: 0}", "queued_actions"),
        ("{burst_actions: 999}", "burst_actions"),
        ("{submissions_per_second: 0}", "submissions_per_second"),
        ("{arriving_actions: 5}", "arriving_actions"),
    ],
)
def test_limits_that_no_project_can_have_are_refused(admin: Any, limits: str, said: str) -> None:
    text = FILE.replace("{default_pool: big}", f"{{default_pool: big, limits: {limits}}}")
    refused = post(admin, "apply", text)

    assert refused.status_code == 422
    assert said in refused.content.decode()
