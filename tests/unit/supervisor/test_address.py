"""The address of a Tangram, and the cores that its nodes declare."""

from __future__ import annotations

import io
import socket
from contextlib import nullcontext

import pytest

from tangram_web.supervisor import readiness
from tangram_web.supervisor.address import ServerAddress, claim_port
from tangram_web.supervisor.console import (
    Console,
    describe_database,
    describe_isolation,
    describe_nodes,
)
from tangram_web.supervisor.errors import StartFailed
from tangram_web.supervisor.options import Options, parse
from tangram_web.supervisor.readiness import failed_checks
from tangram_web.supervisor.stack import share_cores


@pytest.fixture
def taken():
    """Return a port that is in use."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_wanted_port_that_is_taken_is_an_error(taken):
    with pytest.raises(StartFailed, match=f"port {taken}"):
        claim_port("127.0.0.1", taken)


def test_next_free_port_is_used_without_a_wish(taken, monkeypatch):
    monkeypatch.setattr("tangram_web.supervisor.address.DEFAULT_PORT", taken)

    claim = claim_port("127.0.0.1", None)
    try:
        assert taken < claim.port < taken + 100
    finally:
        claim.release()


def test_two_starts_at_once_choose_different_ports(taken, monkeypatch):
    monkeypatch.setattr("tangram_web.supervisor.address.DEFAULT_PORT", taken)

    first = claim_port("127.0.0.1", None)
    second = claim_port("127.0.0.1", None)
    with pytest.raises(StartFailed, match="is taken"):
        claim_port("127.0.0.1", first.port)
    first.release()
    again = claim_port("127.0.0.1", first.port)

    assert second.port > first.port
    for claim in (second, again):
        claim.release()


def test_port_out_of_range_is_an_error():
    with pytest.raises(StartFailed, match="port 70000"):
        claim_port("127.0.0.1", 70000)


@pytest.mark.parametrize("port", [None, 8000])
@pytest.mark.parametrize("host", ["a..b", "192.0.2.1", "::2"])
def test_the_host_of_another_machine_is_named_instead_of_its_ports(host, port):
    with pytest.raises(StartFailed, match=r"cannot listen on .* with --host"):
        claim_port(host, port)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
    ],
)
def test_url_is_one_that_this_machine_can_open(host, url):
    assert ServerAddress(host, 8000).url == url


def test_loopback_needs_no_other_allowed_hosts():
    assert ServerAddress("127.0.0.1", 8000).allowed_hosts({}) == {}


def test_names_of_this_machine_are_allowed_when_it_serves_others():
    allowed = ServerAddress("0.0.0.0", 8000).allowed_hosts({})["TANGRAM_ALLOWED_HOSTS"]

    assert socket.gethostname() in allowed.split(",")


def test_allowed_hosts_of_the_operator_stay():
    assert (
        ServerAddress("0.0.0.0", 80).allowed_hosts({"TANGRAM_ALLOWED_HOSTS": "tangram.lab"}) == {}
    )


@pytest.mark.parametrize(
    ("options", "declared"),
    [
        (Options(), [""]),
        (Options(cpus=8, nodes=2), ["8", "8"]),
        (Options(nodes=0), []),
        (Options(nodes=2), ["0,2", "1,3"]),
        (Options(nodes=5), ["0-0", "1-1", "2-2", "3-3", "0-0"]),
    ],
    ids=["one node has all", "as declared", "none", "shared out", "more nodes than cores"],
)
def test_nodes_share_cores(options, declared):
    assert share_cores([0, 1, 2, 3], options) == declared


@pytest.mark.parametrize("argument", ["--cpus=0", "--nodes=-1", "--nodes=two"])
def test_senseless_count_is_refused(argument, capsys):
    with pytest.raises(SystemExit):
        parse([argument])
    assert argument.partition("=")[0] in capsys.readouterr().err


def test_steps_carry_the_seconds_since_the_start():
    out = io.StringIO()
    ticks = iter([10.0, 12.5])
    console = Console(out, clock=lambda: next(ticks))

    console.waiting("only a terminal shows this")
    console.step("Redis is up")

    assert out.getvalue() == "   2.5 s  Redis is up\n"


def test_password_of_the_database_is_not_shown(home):
    assert "secret" not in describe_database("postgresql://me:secret@db/tangram", home)


@pytest.mark.parametrize(
    ("isolations", "said"),
    [
        (["bwrap", "bwrap"], "each in a sandbox"),
        (["bwrap", "process"], "NOT isolated"),
        ([], "no node has reported"),
    ],
    ids=["all in sandboxes", "one without", "none joined"],
)
def test_isolation_is_that_of_the_weakest_node(isolations, said):
    nodes = [{"pool": "default", "isolation": each, "hindrance": None} for each in isolations]

    assert said in describe_isolation(nodes)


def test_a_start_without_a_sandbox_names_the_pool_and_the_cure():
    node = {"pool": "local", "isolation": "process", "hindrance": None}

    said = " ".join(describe_isolation([node]).split())

    assert "pool local has sandbox: off" in said
    assert "allow user namespaces" in said


def test_a_node_that_gets_no_actions_says_why():
    node = {"pool": "local", "isolation": "process", "hindrance": "pool local requires a sandbox"}

    assert describe_isolation([node]) == "none starts: pool local requires a sandbox"


def test_node_with_more_cores_than_there_are_is_labelled():
    node = {"name": "n1", "resources": {"cpu": {"capacity": 64, "oversubscribed": True}}}

    assert describe_nodes([node]) == "n1: 64 cores, oversubscribed"


def test_failed_checks_are_read_by_name():
    body = '{"checks": {"database": "ok", "leader": "no scheduler loop leads"}}'

    assert failed_checks(body) == {"leader": "no scheduler loop leads"}
    assert failed_checks("<html>") == {}


@pytest.mark.parametrize(("has_nodes", "is_ready"), [(True, False), (False, True)])
async def test_only_a_start_with_nodes_waits_for_one(monkeypatch, has_nodes, is_ready):
    async def answer(*_: object) -> tuple[int, str]:
        return 503, '{"checks": {"loop": "ok", "node": "no node worker shows life"}}'

    monkeypatch.setattr(readiness, "get", answer)
    start = readiness.wait_until_ready(
        "h", 1, token="", timeout_seconds=0.0, waiting=print, has_nodes=has_nodes
    )
    with nullcontext() if is_ready else pytest.raises(StartFailed, match="no node worker"):
        await start
