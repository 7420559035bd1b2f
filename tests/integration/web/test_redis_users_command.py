"""``manage.py redis_users`` writes users that a Redis accepts, and keeps passwords that were handed out."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from django.core.management import CommandError, call_command

from domain.redis_access import RedisRole, user_name
from domain.redis_keys import Keys
from tangram_web.management.commands.redis_users import ACLFILE
from tests.redis_server import RedisServer

KEYS = Keys("tangram")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "users"


def password(folder: Path, user: str) -> str:
    return (folder / f"{user}.password").read_text().strip()


class GuardedServer(RedisServer):
    """A Redis with the written users, of which the default one is off."""

    def __init__(self, directory: Path, users: Path) -> None:
        super().__init__(directory)
        self.users = users

    @property
    def url(self) -> str:
        return self.url_of(user_name(KEYS, RedisRole.MONITORING))

    def url_of(self, user: str) -> str:
        """Return the address for a user."""
        return f"unix://{user}:{password(self.users, user)}@{self.socket}"

    def _options(self) -> list[str]:
        return [*super()._options(), "--aclfile", str(self.users / ACLFILE)]


def test_the_written_users_are_those_of_a_redis(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("redis_users", folder, node=["n1"])
    names = capsys.readouterr().out.split()
    assert {"tangram-web", "tangram-loop", "tangram-admin", "tangram-node-n1"} <= set(names)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert set(modes.values()) == {0o600}
    assert modes.keys() == {ACLFILE, *(f"{name}.password" for name in names)}
    server = GuardedServer(tmp_path / "r", folder)
    server.start()
    try:
        for name in names:
            with redis.Redis.from_url(server.url_of(name)) as client:
                assert client.ping()
        with (
            redis.Redis.from_url(f"unix://{server.socket}") as unnamed,
            pytest.raises(redis.AuthenticationError),
        ):
            unnamed.ping()
        with redis.Redis.from_url(server.url_of("tangram-admin")) as admin:
            admin.set("tangram:config", b"")
            with pytest.raises(redis.exceptions.NoPermissionError):
                admin.set("other:config", b"")
    finally:
        server.stop()


def test_nodes_are_added_and_removed_and_passwords_stay(folder: Path) -> None:
    call_command("redis_users", folder, node=["n1"])
    before = password(folder, "tangram-node-n1")
    call_command("redis_users", folder, node=["n2"])
    assert password(folder, "tangram-node-n1") == before
    text = (folder / ACLFILE).read_text()
    assert "user tangram-node-n1 " in text
    assert "user tangram-node-n2 " in text
    assert before not in text
    call_command("redis_users", folder, remove_node=["n1"])
    assert "tangram-node-n1" not in (folder / ACLFILE).read_text()
    assert not (folder / "tangram-node-n1.password").exists()


def test_a_node_whose_name_is_a_pattern_is_refused(folder: Path) -> None:
    with pytest.raises(CommandError, match="--node: 'n\\*' cannot have a user of Redis"):
        call_command("redis_users", folder, node=["n*"])
    with pytest.raises(CommandError, match="cannot have a user of Redis"):
        call_command("redis_users", folder, remove_node=["../n1"])
