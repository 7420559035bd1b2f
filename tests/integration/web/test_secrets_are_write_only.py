"""Secrets of services and APIs are written and never read: not by pages, files, routes, Redis or rows."""

from __future__ import annotations

import importlib
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, models, transaction
from django.test import Client

from domain.principals import Scope
from tangram_web.audit.models import AuditEntry
from tangram_web.lib import scheduler_client
from tangram_web.lib.sealing import CONFIGURATION, PREFIX, Unsealable, open_secret, unseal
from tangram_web.pools.applying import revision
from tangram_web.pools.models import ConfigRevision, GpuServiceRow, Resource
from tangram_web.pools.resealing import reseal_configuration
from tangram_web.pools.selectors import current_config
from tests.integration.web.site import rows, singles, site_address
from tests.integration.web.test_configuration_by_project import routes
from tests.page_addresses import READ_PAGES

SECRET, HEADER, NEXT = "hf_canary-of-env", "canary-of-header", "hf_canary-of-rotation"
FILE = f"""\
apiVersion: tangram/v1
kind: GpuService
metadata: {{name: reward}}
spec:
  engine: process
  degrees: [{{gpus: 1, memory_bytes: 1}}]
  command: [serve, "{{port}}"]
  env: {{HF_TOKEN: {SECRET}, EMPTY: ""}}
---
apiVersion: tangram/v1
kind: Resource
metadata: {{name: "api:search"}}
spec:
  limit_units: 20
  api: {{base_url: "https://api.example.com", headers: {{X-Key: {HEADER}}}}}
"""


FLEET = """\
---
apiVersion: tangram/v1
kind: Fleet
metadata: {name: small}
spec: {engine: vllm, workers: [{name: w1, url: "http://10.0.0.7:8000"}]}
"""


@pytest.fixture
def admin(defaults: None, redis_bus: Any, caller: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    return caller(Scope.READ, Scope.CONFIG, Scope.OPERATE, Scope.SUBMIT)


@pytest.fixture
def root(defaults: None) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def post(client: Any, path: str, text: str = "") -> Any:
    return client.generic("POST", f"/api/v1/config/{path}", text, content_type="application/yaml")


def exported(client: Any) -> str:
    text: str = client.get("/api/v1/config", HTTP_ACCEPT="application/yaml").content.decode()
    return text


def token_in_force() -> str:
    return unseal(current_config().services["reward"].env["HF_TOKEN"], CONFIGURATION)


def whole_database() -> str:
    with connection.cursor() as cursor:
        tables = connection.introspection.table_names(cursor)
        return "\n".join(str(cursor.execute(f"select * from {name}").fetchall()) for name in tables)


def whole_redis(client: Any) -> bytes:
    found = []
    for key in client.scan_iter("*"):
        kind = client.type(key)
        if kind == b"stream":
            found.append(repr(client.xrange(key)).encode())
        elif kind == b"string":
            found.append(client.get(key))
    return b"\n".join(found)


@pytest.mark.django_db(transaction=True)
def test_no_row_key_log_route_or_page_holds_a_secret(
    admin: Any, root: Client, redis_bus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    singles()
    rows(0, 10)
    answers = [
        post(admin, "diff", FILE), post(admin, "apply", FILE), post(admin, "apply", FILE),
        admin.put("/api/v1/resources/api:search", {"limit_units": 5}, format="json"),
        post(admin, "apply", FILE.replace(SECRET, NEXT)), post(admin, "config/revisions/2/rollback"),
    ]  # fmt: skip
    seen = {f"answer {number}": each.content.decode() for number, each in enumerate(answers)}
    seen |= {path: admin.get(path, HTTP_ACCEPT="*/*").getvalue().decode() for path in routes()}
    seen["export"] = exported(admin)
    pages = {page.name: site_address(page).replace("/1/", "/3/") for page in READ_PAGES}
    pages |= {f"export {form}": f"/export/audit.{form}" for form in ("csv", "json", "ndjson")}
    pages["editor"] = "/configuration/edit/?kind=GpuService&name=reward"
    seen |= {name: root.get(path).getvalue().decode() for name, path in pages.items()}
    seen["database"], seen["log"] = whole_database(), caplog.text
    seen["redis"] = whole_redis(redis_bus).decode(errors="replace")

    leaking = [name for name, text in seen.items() if "canary-of" in text]
    assert leaking == []
    assert PREFIX in seen["redis"]
    assert "&lt;secret set " in seen["editor"]
    assert "<secret set " in seen["export json"]
    assert PREFIX not in "".join(
        text for name, text in seen.items() if name not in ("database", "redis")
    )


def test_a_second_application_and_what_was_exported_change_nothing(admin: Any) -> None:
    assert post(admin, "apply", FILE).status_code == 200
    sealed = current_config().services["reward"].env

    assert post(admin, "apply", FILE).json()["changes"] == []
    assert post(admin, "diff?prune=true", exported(admin)).json()["changes"] == []
    assert post(admin, "apply?prune=true", exported(admin)).json()["changes"] == []
    assert current_config().services["reward"].env == sealed
    assert token_in_force() == SECRET
    assert sealed["EMPTY"] == ""


def test_a_marker_keeps_what_is_set_beside_other_changes(admin: Any) -> None:
    post(admin, "apply", FILE)
    other = FILE.replace(SECRET, "<secret>").replace("gpus: 1", "gpus: 2")

    (change,) = post(admin, "apply", other).json()["changes"]

    assert (change["verb"], change["name"]) == ("update", "reward")
    assert token_in_force() == SECRET
    assert current_config().services["reward"].degrees[0].gpus == 2


def test_a_marker_where_nothing_is_set_is_refused_by_name(admin: Any) -> None:
    answer = post(admin, "apply", FILE.replace(SECRET, "<secret set 2026-11-22T00:00:00Z>"))

    assert answer.status_code == 422
    assert "HF_TOKEN is <secret set" in answer.json()["detail"]
    assert "none is set; give the value" in answer.json()["detail"]
    assert "reward" not in current_config().services


def test_sealed_text_from_outside_is_refused(admin: Any) -> None:
    post(admin, "apply", FILE)
    stolen = current_config().services["reward"].env["HF_TOKEN"]

    for path in ("apply", "diff"):
        answer = post(admin, path, FILE.replace(SECRET, stolen))
        assert answer.status_code == 422
        assert "reserved" in answer.json()["detail"]


def test_a_rollback_brings_the_former_secret_back(admin: Any) -> None:
    post(admin, "apply", FILE)
    post(admin, "apply", FILE.replace(SECRET, NEXT))
    assert token_in_force() == NEXT
    shown = admin.get("/api/v1/config/revisions/2").json()["documents"]
    now = admin.get("/api/v1/config").json()["documents"]
    assert shown != now  # another fingerprint

    assert post(admin, "revisions/2/rollback").status_code == 200

    assert token_in_force() == SECRET
    assert current_config().services["reward"] == revision(2).services["reward"]


def test_a_resource_is_changed_over_rest_without_its_secret(admin: Any) -> None:
    post(admin, "apply", FILE)
    shown = admin.get("/api/v1/resources/api:search").json()
    assert shown["api"]["headers"]["X-Key"].startswith("<secret set ")

    answer = admin.put(
        "/api/v1/resources/api:search", {"limit_units": 5, "api": shown["api"]}, format="json"
    )

    assert answer.status_code == 200, answer.content
    assert open_secret(current_config().apis["api:search"].headers["X-Key"]) == HEADER
    changed = {**shown["api"], "headers": {"X-Key": "other"}}
    admin.put("/api/v1/resources/api:search", {"limit_units": 5, "api": changed}, format="json")
    assert open_secret(current_config().apis["api:search"].headers["X-Key"]) == "other"


def test_two_editors_merge_and_each_new_secret_is_kept(admin: Any, root: Client) -> None:
    assert post(admin, "apply", FILE + FLEET).status_code == 200
    mine = exported(admin).replace("<secret set", "<secret kept, set", 1)
    documents = list(yaml.safe_load_all(mine))
    service = next(each for each in documents if each["kind"] == "GpuService")
    service["spec"]["env"]["HF_TOKEN"] = NEXT
    theirs = {"limit_units": 7}
    admin.put("/api/v1/resources/api:search", theirs, format="json")
    text = yaml.safe_dump(service)

    merging = root.post("/configuration/review/", {"text": text, "revision": "2", "save": "1"})
    assert merging.status_code == 412
    merged = merging.context["text"]
    saved = root.post(
        "/configuration/review/",
        {"text": merged, "revision": str(current_config().revision), "save": "1"},
    )

    assert saved.status_code == 302
    assert token_in_force() == NEXT


@pytest.mark.parametrize("page", ["/act/service/quarantine/", "/act/resource/limit/"])
def test_verbs_of_operators_keep_secrets_and_show_none(admin: Any, root: Client, page: str) -> None:
    post(admin, "apply", FILE)
    target = "reward" if "service" in page else "api:search"
    given = {"target": target, "typed": target, "limit_units": "3"}

    looked = root.get(page, given).content.decode()
    done = root.post(page, given)

    assert done.status_code == 302, done.content
    assert "canary-of" not in looked
    assert PREFIX not in looked
    assert token_in_force() == SECRET
    assert open_secret(current_config().apis["api:search"].headers["X-Key"]) == HEADER
    assert PREFIX not in root.get("/audit/").content.decode()


# Rows of earlier versions


def made_by_an_earlier_version() -> None:
    """Write rows as version 0.1.0 did: with plain secrets."""
    env, headers = {"HF_TOKEN": SECRET}, {"X-Key": HEADER}
    spec = {"engine": "process", "degrees": [{"gpus": 1, "memory_bytes": 1}], "env": env}
    api = {"base_url": "https://api.example.com", "headers": headers}
    GpuServiceRow.objects.create(name="reward", spec=spec)
    Resource.objects.create(name="api:search", limit_units=1, spec={"api": api})
    for number in (2, 3):
        ConfigRevision.objects.create(
            number=number,
            author="ada",
            snapshot={
                "revision": number,
                "pools": {"default": {"name": "default"}},
                "projects": {"default": {"name": "default"}},
                "resources": {"api:search": number * 1000},
                "services": {"reward": spec},
                "apis": {"api:search": api},
            },
        )
    after = {"GpuService/reward": spec, "Resource/api:search": {"limit_units": 1, "api": api}}
    models.QuerySet(AuditEntry).create(
        actor="ada", verb="apply", target="configuration", before=None, after=after
    )


def test_rows_of_earlier_versions_are_encrypted_once(admin: Any) -> None:
    made_by_an_earlier_version()
    migration = importlib.import_module("tangram_web.pools.migrations.0011_sealed_secrets")

    editor = SimpleNamespace(connection=connection)

    migration.seal(apps, editor)
    first = whole_database()
    migration.seal(apps, editor)

    assert whole_database() == first
    assert "canary-of" not in first
    assert token_in_force() == SECRET
    two, three = revision(2).services, revision(3).services
    assert two == three == current_config().services
    assert AuditEntry.objects.get(verb="apply").after["GpuService/reward"]["env"] == {
        "HF_TOKEN": "<secret>"
    }
    assert post(admin, "revisions/2/rollback").status_code == 200
    assert token_in_force() == SECRET
    with pytest.raises(IntegrityError, match="written once"), transaction.atomic():
        models.QuerySet(AuditEntry).update(actor="eve")
    migration.unseal_rows(apps, None)
    assert current_config().services["reward"].env == {"HF_TOKEN": SECRET}


# The key


def test_a_new_key_takes_over_and_former_revisions_stay_readable(admin: Any, settings: Any) -> None:
    post(admin, "apply", FILE)
    before = json.dumps(exported(admin))
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "the next key of this installation"

    assert reseal_configuration() == 3  # a service, a resource, a revision
    assert reseal_configuration() == 0
    settings.SECRET_KEY_FALLBACKS = []

    assert token_in_force() == SECRET
    assert current_config().services == revision(2).services
    assert post(admin, "apply", FILE).json()["changes"] == []
    assert (
        before.partition("fingerprint")[0]
        == json.dumps(exported(admin)).partition("fingerprint")[0]
    )


def test_without_its_key_a_secret_is_named_and_can_be_set_again(admin: Any, settings: Any) -> None:
    post(admin, "apply", FILE)
    settings.SECRET_KEY = "a key that sealed nothing in here"

    assert "unreadable without its key" in exported(admin)
    with pytest.raises(Unsealable, match="TANGRAM_SECRET_KEY"):
        open_secret(current_config().services["reward"].env["HF_TOKEN"])
    assert post(admin, "apply", exported(admin)).json()["changes"] == []
    assert post(admin, "apply", FILE).status_code == 200
    assert token_in_force() == SECRET


def test_the_key_file_is_rotated_in_two_steps(admin: Any, settings: Any, tmp_path: Any) -> None:
    post(admin, "apply", FILE)
    key, former = tmp_path / "secret_key", tmp_path / "secret_key.former"
    key.write_text(settings.SECRET_KEY)
    key.chmod(0o600)
    settings.TANGRAM_KEY_FILE, settings.TANGRAM_FORMER_KEYS_FILE = key, former
    settings.TANGRAM_KEY_IN_ENVIRONMENT = False

    call_command("rotate_key")
    assert former.read_text() == settings.SECRET_KEY
    assert {path.stat().st_mode & 0o777 for path in (key, former)} == {0o600}
    with pytest.raises(CommandError, match="under way"):
        call_command("rotate_key")

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = key.read_text(), [former.read_text()]
    call_command("rotate_key", "--finish")
    assert not former.exists()
    settings.SECRET_KEY_FALLBACKS = []
    assert token_in_force() == SECRET
