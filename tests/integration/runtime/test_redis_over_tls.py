"""Redis over TLS with certificates of both sides: a whole system, the broker, pages; and certificates that are renewed while parts run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from channels_redis.pubsub import RedisPubSubChannelLayer
from kombu.connection import Connection

from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import connect, connect_async
from scheduler.runtime.redis.connection import AsyncRedisConnection, RedisConnection
from tangram_web.healthcheck import read_hash
from tests.integration.runtime.rig import LoopThread, Rig
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.tls_files import Authority

EXEC = {"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["echo", "hi"]}}


class TlsServer(RedisServer):
    """A Redis with a TLS port that admits clients with certificates of its authority alone."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()
        self.authority = Authority(directory.with_name(f"{directory.name}-tls"))
        self.certificate, self.key = self.authority.issue("server")
        self.authority.issue("client")

    @property
    def tls_url(self) -> str:
        """Address for parts."""
        return self.url_with(self.authority)

    def url_with(self, authority: Authority) -> str:
        """Return the address with the client's certificate of an authority."""
        own = authority.folder / "client"
        files = f"ssl_ca_certs={authority.path}&ssl_certfile={own}.pem&ssl_keyfile={own}.key"
        return f"rediss://127.0.0.1:{self.port}/0?ssl_cert_reqs=required&{files}"

    def _options(self) -> list[str]:
        options = {
            "tls-port": str(self.port), "tls-cert-file": str(self.certificate), "tls-key-file": str(self.key),
            "tls-ca-cert-file": str(self.authority.path), "tls-auth-clients": "yes",
        }  # fmt: skip
        given = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [*super()._options(), *given]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    server = TlsServer(tmp_path_factory.mktemp("tls"))
    server.start()
    yield server
    server.stop()


async def test_an_action_completes_over_tls(tls: TlsServer, keys: Keys, tmp_path: Path) -> None:
    rig = Rig(tls.tls_url, keys, tmp_path)
    rig.loop = LoopThread(tls.tls_url, keys)
    try:
        await rig.start_node()
        async with rig.client() as client:
            view = (await client.post("/actions?wait=60", json=EXEC)).json()
    finally:
        await rig.end()
    assert view["result"]["stdout"] == "hi\n"


async def test_the_broker_pages_and_the_check_of_containers_use_tls(tls: TlsServer) -> None:
    with Connection(tls.tls_url) as broker:
        queue = broker.SimpleQueue("q")
        queue.put("job")
        assert queue.get(timeout=60).payload == "job"
    layer = RedisPubSubChannelLayer(hosts=[tls.tls_url])
    channel = await layer.new_channel()
    await layer.group_add("g", channel)
    await layer.group_send("g", {"type": "frame"})
    assert await layer.receive(channel) == {"type": "frame"}
    await layer.flush()
    with connect(tls.tls_url) as client:
        client.hset("h", "a", "1")
    assert read_hash(tls.tls_url, "h") == {"a": "1"}


def test_a_client_without_a_certificate_of_the_authority_is_refused(
    tls: TlsServer, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "other")
    stranger.issue("client")
    with connect(tls.url_with(stranger)) as client, pytest.raises(redis.ConnectionError):
        client.ping()


async def test_renewed_certificates_are_used_by_the_next_connections(tmp_path: Path) -> None:
    """Both sides change their authority on disk; each part goes on with the client that it has."""
    server = TlsServer(tmp_path / "r")
    server.start()
    blocking, pooled = connect(server.tls_url), connect_async(server.tls_url)
    wires = RedisConnection(blocking), AsyncRedisConnection(pooled)
    try:
        assert blocking.ping()
        assert await pooled.ping()
        assert wires[0].call("PING") == b"PONG"
        assert await wires[1].call("PING") == b"PONG"
        renewed = Authority(server.authority.folder)
        for name in ("server", "client"):
            renewed.issue(name)
        files = {
            "tls-ca-cert-file": renewed.path, "tls-cert-file": server.certificate, "tls-key-file": server.key,
        }  # fmt: skip
        with server.client() as admin:
            named = [str(part) for pair in files.items() for part in pair]
            admin.execute_command("CONFIG", "SET", *named)
            admin.client_kill_filter(_type="normal", skipme=True)
        for wire in wires:
            wire.close()
        await pooled.connection_pool.disconnect()
        blocking.connection_pool.disconnect()
        assert blocking.ping()
        assert await pooled.ping()
        assert wires[0].call("PING") == b"PONG"
        assert await wires[1].call("PING") == b"PONG"
    finally:
        for wire in wires:
            wire.close()
        blocking.close()
        await pooled.aclose()
        server.stop()
