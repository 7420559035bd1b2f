"""Several web processes share one address; one alone is started as before."""

from __future__ import annotations

import socket

import pytest

from benchmarks.web_processes import ActionCosts, predicted_rate
from tangram_web.serving.__main__ import shared_socket
from tangram_web.supervisor import stack
from tangram_web.supervisor.address import ServerAddress
from tangram_web.supervisor.options import parse

ADDRESS = ServerAddress("127.0.0.1", 8000)


def test_one_web_process_listens_alone():
    assert parse([]).webs == 1
    assert stack.webs(ADDRESS, {}, 1) == [stack.web(ADDRESS, {})]


def test_each_of_several_has_a_name_and_the_same_command():
    programs = stack.webs(ADDRESS, {}, parse(["--webs", "3"]).webs)

    assert [each.name for each in programs] == ["web", "web-2", "web-3"]
    assert len({each.command for each in programs}) == 1


def test_an_address_is_shared_with_those_alone_that_share_it_too():
    with shared_socket("127.0.0.1", 0) as first:
        host, port = first.getsockname()
        with shared_socket(host, port) as second, socket.socket() as other:
            assert second.getsockname() == first.getsockname()
            with pytest.raises(OSError, match="in use"):
                other.bind((host, port))


def test_the_model_has_three_bounds():
    costs = ActionCosts(web=200.0, rest=300.0, generator=50.0, single=100.0, follow=20.0)

    assert predicted_rate(costs, cores=2, webs=1) == pytest.approx(2e6 / 550)
    assert predicted_rate(costs, cores=8, webs=1) == pytest.approx(1e6 / 200)
    assert predicted_rate(costs, cores=16, webs=4) == pytest.approx(1e6 / 100)
