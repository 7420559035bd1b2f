"""Join tokens: a machine exchanges one, once, for a Redis user of its own; a revoked node has none."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from domain.codec import decode_command
from domain.errors import Gone
from domain.events import NodeRevoked
from domain.principals import Scope
from domain.redis_keys import Keys
from scheduler.runtime.hosted_thread import in_event_loop
from scheduler.runtime.node_access import NodeAccessKeeper
from scheduler.runtime.redis.clients import connect_async
from tangram_web.audit.models import AuditEntry
from tangram_web.audit.services import SYSTEM
from tangram_web.lib import bus
from tangram_web.pools import join_tokens, node_access
from tangram_web.pools.models import JoinToken

KEYS = Keys("tangram")
MINE = hashlib.sha256(b"mine").hexdigest()
THEIRS = hashlib.sha256(b"theirs").hexdigest()

Join = Callable[..., Any]


@pytest.fixture
def guarded(redis_bus: redis.Redis, settings: Any, tmp_path: Path) -> Iterator[redis.Redis]:
    """A Redis with a user of web processes, which other machines reach by another address."""
    redis_bus.acl_setuser(
        "tangram-web", enabled=True, nopass=True, categories=["+@all"], keys=["*"]
    )
    plain = settings.TANGRAM_REDIS_URL
    settings.TANGRAM_REDIS_URL = plain.replace("unix://", "unix://tangram-web:any@")
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    settings.TANGRAM_JOIN_REDIS_URL = (
        f"rediss://redis.example:6379/0?ssl_cert_reqs=required&ssl_ca_certs={tmp_path}/ca.pem"
    )
    yield redis_bus
    names = [str(name) for name in redis_bus.acl_users()]
    redis_bus.acl_deluser(*(name for name in names if name.startswith("tangram-")))


@pytest.fixture
def keeper(guarded: redis.Redis, redis_server: Any) -> Iterator[None]:
    """The keeper of node access."""

    async def keep() -> None:
        client = connect_async(redis_server.url)
        try:
            await NodeAccessKeeper(client, KEYS, pass_seconds=0.01).run()
        finally:
            await client.aclose()

    over = threading.Event()
    thread = threading.Thread(target=in_event_loop(keep), args=(over,))
    thread.start()
    yield
    over.set()
    thread.join(60)


@pytest.fixture
def admin(caller: Callable[..., APIClient]) -> APIClient:
    return caller(Scope.ADMIN)


def create(admin: APIClient, **body: Any) -> dict[str, Any]:
    answer = admin.post("/api/v1/node-tokens", body)
    assert answer.status_code == 201, answer.content
    made: dict[str, Any] = answer.json()
    return made


def join(token: str, node: str = "gpu-1", digest: str = MINE, **request: Any) -> Any:
    return APIClient(raise_request_exception=False).post(
        f"/api/v1/nodes/{node}/join",
        {"password_sha256": digest, "pool": "asked"},
        headers={"Authorization": f"Bearer {token}"},
        **request,
    )


def can_sign_in(server: Any, node: str, password: str) -> bool:
    with redis.Redis(
        unix_socket_path=str(server.socket), username=f"tangram-node-{node}", password=password
    ) as client:
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            return False


def test_a_token_is_shown_once_and_kept_as_a_hash(admin: APIClient, guarded: object) -> None:
    made = create(admin, prefix="gpu-", uses=3, seconds=60, isolation="bwrap")
    (listed,) = admin.get("/api/v1/node-tokens").json()["results"]
    assert made.pop("token").startswith("tgj_")
    assert listed == made
    assert (listed["prefix"], listed["node"], listed["used"], listed["useless"]) == (
        "gpu-",
        "",
        0,
        "",
    )
    stored = JoinToken.objects.get()
    assert stored.expires_at - timezone.now() < timedelta(seconds=60)
    assert [each.verb for each in AuditEntry.objects.filter(target=f"join-token/{made['id']}")] == [
        "create"
    ]
    assert admin.delete(f"/api/v1/node-tokens/{made['id']}").status_code == 204
    (listed,) = admin.get("/api/v1/node-tokens").json()["results"]
    assert listed["useless"] == "was revoked"


def test_a_machine_gets_a_user_of_its_own_and_another_one_does_not(
    admin: APIClient, keeper: None, redis_server: Any
) -> None:
    token = create(admin, pool="default")["token"]
    answer = join(token)
    assert answer.status_code == 200, answer.content
    assert answer.json() == {
        "node": "gpu-1", "pool": "default", "isolation": "", "key_prefix": "tangram", "user": "tangram-node-gpu-1",
        "redis": {"url": "rediss://redis.example:6379/0?ssl_cert_reqs=required", "ca": "-----BEGIN CERTIFICATE-----"},
    }  # fmt: skip
    assert answer["Cache-Control"] == "no-store"
    assert can_sign_in(redis_server, "gpu-1", "mine")
    # It did not read the answer, and asks again.
    assert join(token).json() == answer.json()
    assert JoinToken.objects.get().used == 1
    second = join(token, "gpu-2", THEIRS)
    assert second.status_code == 410
    assert "has been used: have an admin create another one" in second.json()["detail"]
    assert [each.actor for each in AuditEntry.objects.filter(verb="join")] == [
        JoinToken.objects.get().public_id
    ]


def test_of_two_machines_that_race_one_wins(guarded: object, keeper: None, defaults: None) -> None:
    _, raw = join_tokens.join_token_create(actor=SYSTEM)
    both = join_tokens.token_of(raw), join_tokens.token_of(raw)
    assert both[0]
    assert both[1]
    join_tokens.join(both[0], node="a", pool="", digest=MINE, actor=SYSTEM)
    with pytest.raises(Gone, match="has been used"):
        join_tokens.join(both[1], node="b", pool="", digest=THEIRS, actor=SYSTEM)
    assert not node_access.has_access("b")


def test_a_name_that_is_taken_costs_no_use(admin: APIClient, keeper: None) -> None:
    token = create(admin, prefix="gpu-", uses=2)["token"]
    assert join(token).status_code == 200
    taken = join(token, digest=THEIRS)
    assert taken.status_code == 409
    assert "tangram node revoke gpu-1" in taken.json()["detail"]
    assert JoinToken.objects.get().used == 1
    assert AuditEntry.objects.filter(verb="join-failed").count() == 1
    assert join(token, "gpu-2", THEIRS).status_code == 200


def test_a_token_is_of_no_use_after_its_time_or_its_revocation(
    admin: APIClient, guarded: object
) -> None:
    expired, revoked = create(admin), create(admin)
    JoinToken.objects.filter(public_id=expired["id"]).update(expires_at=timezone.now())
    admin.delete(f"/api/v1/node-tokens/{revoked['id']}")
    answers = [join(each["token"]) for each in (expired, revoked)]
    assert [each.status_code for each in answers] == [410, 410]
    assert [
        "has expired" in answers[0].json()["detail"],
        "was revoked" in answers[1].json()["detail"],
    ] == [True, True]


def test_guesses_lock_the_address(admin: APIClient, guarded: object) -> None:
    assert join("tgm_" + "0" * 32).json()["code"] == "unauthorized"
    for _ in range(8):
        assert join("tgj_guess").status_code == 401
    assert join("tgj_guess").status_code == 429
    locked = join(create(admin)["token"])
    assert (locked.status_code, locked["Retry-After"]) == (429, "300")
    assert join(create(admin)["token"], REMOTE_ADDR="::1").status_code == 503  # no keeper runs


def test_without_a_keeper_nothing_is_used_up(admin: APIClient, guarded: object) -> None:
    answer = join(create(admin)["token"])
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")
    assert "python -m tangram_web.access_keeper" in answer.json()["detail"]
    assert JoinToken.objects.get().used == 0


BAD: list[tuple[dict[str, Any], str]] = [
    ({"node": "a", "prefix": "b"}, "/prefix"),
    ({"node": "a", "uses": 2}, "/uses"),
    ({"prefix": "a*"}, "/prefix"),
    ({"pool": "none"}, "/pool"),
    ({"isolation": "none"}, "/isolation"),
    ({"seconds": 0}, "/seconds"),
]


def test_a_bad_token_names_its_member(admin: APIClient, guarded: object) -> None:
    for body, pointer in BAD:
        answer = admin.post("/api/v1/node-tokens", body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


def test_a_token_is_for_its_node_alone(admin: APIClient, guarded: object) -> None:
    answer = join(create(admin, node="gpu-2")["token"])
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/node")
    assert "must be gpu-2: set TANGRAM_NODE" in answer.json()["detail"]


def test_where_parts_share_a_password_there_are_no_tokens(
    admin: APIClient, redis_bus: object
) -> None:
    answer = admin.post("/api/v1/node-tokens", {})
    revoked = admin.post("/api/v1/nodes/gpu-1/revoke")
    assert (answer.status_code, answer.json()["code"]) == (409, "no_redis_users")
    assert "TANGRAM_REDIS_URL of each part" in answer.json()["detail"]
    assert (revoked.status_code, revoked.json()["code"]) == (409, "no_redis_users")


def test_an_address_that_others_do_not_reach_is_not_given_out(
    admin: APIClient, guarded: object, settings: Any
) -> None:
    settings.TANGRAM_JOIN_REDIS_URL = ""
    answer = admin.post("/api/v1/node-tokens", {})
    assert (answer.status_code, answer.json()["code"]) == (409, "no_redis_address")


def test_a_token_in_clear_is_refused(admin: APIClient, keeper: None) -> None:
    token = create(admin)["token"]
    refused = join(token, REMOTE_ADDR="10.0.0.7")
    assert (refused.status_code, refused.json()["code"]) == (403, "https_required")
    assert join(token, REMOTE_ADDR="10.0.0.7", secure=True).status_code == 200


def test_a_revoked_node_has_no_user_and_joins_by_another_token_alone(
    admin: APIClient, keeper: None, redis_server: Any
) -> None:
    token = create(admin, prefix="gpu-", uses=2)["token"]
    assert join(token).status_code == 200
    answer = admin.post("/api/v1/nodes/gpu-1/revoke")
    assert answer.json() == {"node": "gpu-1", "user_deleted": True}
    assert not can_sign_in(redis_server, "gpu-1", "mine")
    entries: Any = bus.redis_client().xrange(KEYS.inbox)
    (event,) = [decode_command(each) for _, fields in entries for each in fields.values()]
    assert event == NodeRevoked(node="gpu-1")
    assert [each.target for each in AuditEntry.objects.filter(verb="revoke")] == ["node/gpu-1"]
    assert join(token, digest=THEIRS).status_code == 200
    assert can_sign_in(redis_server, "gpu-1", "theirs")
    assert admin.post("/api/v1/nodes/gpu-9/revoke").status_code == 404


@pytest.fixture
def pages(defaults: None) -> Callable[..., Client]:
    """Make browsers of administrators and of staff."""

    def signed_in(*, admin: bool = True) -> Client:
        make = get_user_model().objects.create_user
        client = Client()
        client.force_login(make(f"someone-{admin}", is_staff=True, is_superuser=admin))
        return client

    return signed_in


PAGE = "/workers/tokens/"
FILLED = {"names": "prefix", "name": "gpu-", "pool": "default", "uses": "3", "seconds": "600"}


def test_the_page_shows_a_new_token_once_with_the_command_of_the_machine(
    pages: Callable[..., Client], keeper: None
) -> None:
    browser = pages()
    made = browser.post(PAGE, FILLED)
    text = made.content.decode()
    assert made.status_code == 200, text
    stored = JoinToken.objects.get()
    assert (stored.node, stored.is_prefix, stored.pool, stored.uses) == ("gpu-", True, "default", 3)
    assert f"TANGRAM_JOIN_TOKEN={made.context['raw']} TANGRAM_NODE=gpu-1 " in text
    assert join(made.context["raw"], "gpu-7").status_code == 200

    browser.post(f"{PAGE}{stored.public_id}/revoke")
    listed = browser.get(PAGE)
    assert made.context["raw"] not in listed.content.decode()
    assert listed.context["hindrance"] == ""
    assert [useless for _, useless in listed.context["tokens"]] == ["was revoked"]


@pytest.mark.parametrize(
    ("wrong", "field", "said"),
    [
        ({"name": ""}, "name", "give the name"),
        ({"names": ""}, "names", "choose what the name is for"),
        ({"name": "gpu 1"}, "name", "gpu 1"),
        ({"names": "node"}, "uses", "a token for one node has one use"),
        ({"uses": "0"}, "uses", "greater than or equal to 1"),
        ({"pool": "none"}, "pool", "not one of the available"),
    ],
)
def test_a_refused_token_is_explained_at_its_field(
    pages: Callable[..., Client], guarded: object, wrong: dict[str, str], field: str, said: str
) -> None:
    answer = pages().post(PAGE, FILLED | wrong)
    assert answer.status_code == 422
    assert said in " ".join(answer.context["form"].errors[field])
    assert not JoinToken.objects.exists()


def test_the_page_says_why_no_machine_can_join(
    pages: Callable[..., Client], redis_bus: object
) -> None:
    browser = pages()
    shown = browser.get(PAGE)
    assert "nodes have no users of Redis here" in shown.context["hindrance"]
    assert "Create a join token" not in shown.content.decode()
    answer = browser.post(PAGE, FILLED)
    assert answer.status_code == 422
    assert not JoinToken.objects.exists()


def test_tokens_can_be_created_before_the_keeper_runs(
    pages: Callable[..., Client], guarded: object
) -> None:
    answer = pages().post(PAGE, FILLED)
    assert answer.context["raw"]
    assert "no process makes users of Redis for nodes" in answer.context["hindrance"]


def test_staff_read_join_tokens_and_neither_create_nor_revoke_them(
    pages: Callable[..., Client], guarded: object
) -> None:
    token, _ = join_tokens.join_token_create(actor=SYSTEM)
    browser = pages(admin=False)
    assert f'action="{PAGE}' not in browser.get(PAGE).content.decode()
    assert browser.post(PAGE, FILLED).status_code == 403
    assert browser.post(f"{PAGE}{token.public_id}/revoke").status_code == 403
    token.refresh_from_db()
    assert (token.revoked_at, JoinToken.objects.count()) == (None, 1)
