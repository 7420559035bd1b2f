"""Faults of a TCP group, made for real: each rank gets the same typed error within five seconds, or the whole batch."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dispatcher.transport import JoinRefused
from dispatcher.transport.connections import CONTROL, connect
from dispatcher.transport.tcp import listen
from tests.integration.dispatcher.groups import RankProcess, group, reference

FOUND_SECONDS = 5.0
#: A stopped rank is found after seconds, which a killed one is not; that of number 0 too, with `--long`.
STOPPED_ROOT = pytest.param("stop", 0, marks=pytest.mark.long)


def errors(ranks: dict[int, RankProcess], leave_out: int = -1) -> dict[int, dict[str, Any]]:
    """Return the errors of ranks, with when they had them."""
    answers = {rank: each.answer() for rank, each in ranks.items() if rank != leave_out}
    assert all("error" in answer for answer in answers.values()), answers
    return answers


def named(answers: dict[int, dict[str, Any]]) -> set[tuple[str, int]]:
    """Return the types of errors and the ranks that they name."""
    return {(each["error"]["type"], each["error"]["members"]["rank"]) for each in answers.values()}


@pytest.mark.parametrize(("fault", "victim"), [("kill", 2), ("kill", 0), ("stop", 2), STOPPED_ROOT])
def test_a_rank_without_replica_that_dies_or_stops_is_named_on_each_rank(
    fault: str, victim: int
) -> None:
    with group(4, "large", of_rank={victim: ["--fault", fault]}) as ranks:
        os.waitid(os.P_PID, ranks[victim].process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        began = time.time()
        found = errors(ranks, leave_out=victim)
        assert named(found) == {("RankLost", victim)}
        assert max(each["at"] for each in found.values()) - began < FOUND_SECONDS
        if fault == "stop":  # it comes back, and learns that the group went on
            os.kill(ranks[victim].process.pid, signal.SIGCONT)
            assert errors({victim: ranks[victim]})


@pytest.mark.parametrize(("fault", "victim"), [("kill", 1), ("kill", 0), ("stop", 1), STOPPED_ROOT])
def test_what_a_lost_rank_had_comes_from_its_replica(fault: str, victim: int) -> None:
    of_rank = {victim: ["--fault", fault, "--after", "0"]}
    with group(6, "replicated", "--times", "2", of_rank=of_rank) as ranks:
        answers = {rank: ranks[rank].answer() for rank in ranks if rank != victim}
    assert {rank: answers[rank]["arrays"] for rank in (4, 5)} == reference("replicated")
    lost = [list(each["report"]["lost"]) for each in answers.values()]
    assert all(str(victim) in each for each in lost)
    # On a busy machine a rank may be silent for as long as a stopped one.
    assert fault == "stop" or all(each == [str(victim)] for each in lost)


def test_changed_bytes_are_found_and_their_rank_named_on_each_rank() -> None:
    with group(4, "large", of_rank={3: ["--fault", "corrupt"]}) as ranks:
        found = errors(ranks)
    assert named(found) == {("Corrupted", 3)}
    assert found[0]["error"]["members"]["tensor"] == "rows"


def test_layouts_that_differ_are_named_before_a_byte_leaves() -> None:
    with group(2, {0: "halves", 1: "other_dtype"}) as ranks:
        found = errors(ranks)
    assert named(found) == {("Mismatch", 1)}
    described = found[0]["error"]["members"]
    assert described["tensor"] == "x"
    assert described["ours"].startswith("float64")
    assert described["theirs"].startswith("int64")


def test_a_rank_that_does_not_begin_is_named_after_the_timeout() -> None:
    with group(3, "halves", "--timeout", "0.5", of_rank={2: ["--gate"]}) as ranks:
        for each in ranks.values():
            each.open()
        found = errors(ranks, leave_out=2)
    assert {tuple(each["error"]["members"]["ranks"]) for each in found.values()} == {(2,)}


def test_strangers_are_refused_and_delay_no_exchange() -> None:
    with group(2, "halves", "--gate") as ranks:
        for each in ranks.values():
            each.open()
        address = _address_of(ranks[0])
        with socket.create_connection(address), socket.create_connection(address) as loud:
            loud.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
            with pytest.raises(JoinRefused, match="another secret"):
                connect(address, b"guess", (1, 0), CONTROL, time.monotonic() + 5, 1)
            with pytest.raises(JoinRefused, match="taken"):
                connect(address, b"secret of this test", (1, 0), CONTROL, time.monotonic() + 5, 1)
            for each in ranks.values():
                each.go()
            answers = {rank: each.answer()["arrays"] for rank, each in ranks.items()}
    assert answers == reference("halves")


def test_a_connection_that_swallows_bytes_names_one_of_its_ends_on_each_rank() -> None:
    addresses: dict[int, dict[int, tuple[str, int]]] = {}
    with hole() as (address, behind):
        addresses[1] = {2: address}
        with group(4, "large", "--gate", addresses_of=addresses) as ranks:
            for each in ranks.values():
                each.open()
            behind.append(_address_of(ranks[2]))
            began = time.time()
            for each in ranks.values():
                each.go()
            found = errors(ranks)
    assert named(found) in ({("RankLost", 1)}, {("RankLost", 2)})
    assert max(each["at"] for each in found.values()) - began < FOUND_SECONDS


def _address_of(rank: RankProcess) -> tuple[str, int]:
    command = rank.process.args
    assert isinstance(command, list)
    host, port = json.loads(command[command.index("--addresses") + 1])[str(rank.rank)]
    return host, port


@contextmanager
def hole() -> Iterator[tuple[tuple[str, int], list[tuple[str, int]]]]:
    """Run a proxy that passes a handshake and some bytes on, and then nothing, without an end to either connection."""
    behind: list[tuple[str, int]] = []
    listener, kept = listen(), list[socket.socket]()

    def serve() -> None:
        while True:
            try:
                front, _ = listener.accept()
            except OSError:
                return
            back = socket.create_connection(behind[0])
            kept.extend((front, back))
            threading.Thread(target=pump, args=(back, front, 1 << 30), daemon=True).start()
            threading.Thread(target=pump, args=(front, back, 100_000), daemon=True).start()

    def pump(source: socket.socket, sink: socket.socket, limit: int) -> None:
        while limit > 0:
            try:
                got = source.recv(min(limit, 1 << 16))
                sink.sendall(got)
            except OSError:
                return
            if not got:
                return
            limit -= len(got)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[:2], behind
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in kept:
            each.close()
