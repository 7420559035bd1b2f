"""Caches of engine ``torch`` by trajectory, and their moves, between real worker processes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.torch_workers import PYTHON, VARIABLES, TorchWorker, cached_tokens, write_config

pytestmark = pytest.mark.slow

PROMPT = list(range(3, 43))
#: What a tool returned.
MORE = list(range(60, 72))
#: Bytes of the cache of one token: two layers, keys and values of two heads of 16 float32.
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pair(source: Path) -> Iterator[tuple[TorchWorker, TorchWorker]]:
    with TorchWorker(source) as one, TorchWorker(source) as two:
        yield one, two


@pytest.fixture
def workers(pair: tuple[TorchWorker, TorchWorker]) -> tuple[TorchWorker, TorchWorker]:
    """Two workers of one model without caches."""
    for worker in pair:
        for name in worker.cached():
            worker.drop(name)
    return pair


def pull(target: TorchWorker, trajectory: str, source: str, **members: Any) -> httpx.Response:
    return target.ask(f"/tangram/caches/{trajectory}/pull", {"source": source, **members})


def begun(worker: TorchWorker, trajectory: str = "t1") -> list[int]:
    """Take the first step of a trajectory; return the prompt of its second."""
    first = worker.complete(PROMPT, trajectory)
    return [*PROMPT, *first["token_ids"], *MORE]


def test_the_next_step_computes_only_what_is_new(workers) -> None:
    one, _ = workers
    again = begun(one)
    before = one.prefilled()
    second = one.complete(again, "t1")
    # The last token of an answer was sampled, and nothing has been computed for it.
    assert cached_tokens(second) == len(again) - len(MORE) - 1
    assert one.prefilled() - before == len(MORE) + 1


def test_the_next_step_has_the_logits_of_a_prompt_that_is_computed_whole(workers) -> None:
    one, two = workers
    again = begun(one)
    cached, count = one.score(again, "t1")
    whole, none = two.score(again)
    assert (count, none) == (len(again) - len(MORE) - 1, 0)
    assert cached == pytest.approx(whole, abs=1e-4)


def test_after_a_move_the_logits_are_those_without_it_and_only_new_tokens_are_computed(
    workers,
) -> None:
    one, two = workers
    again = begun(one)
    moved = pull(two, "t1", one.url, keep_source=True).json()
    assert moved["moved_tokens"] == len(again) - len(MORE) - 1
    before = two.prefilled()
    here, there = two.score(again, "t1"), one.score(again, "t1")
    assert here == there, "bit for bit"
    assert two.prefilled() - before == len(MORE) + 1


def test_a_trajectory_goes_on_after_a_move_as_without_it(workers) -> None:
    one, two = workers
    again = begun(one)
    assert pull(two, "t1", one.url).json()["source_dropped"]
    assert (one.cached(), list(two.cached())) == ({}, ["t1"])
    sampled = {"temperature": 2.0, "seed": 4}
    moved = two.complete(again, "t1", **sampled)
    whole = one.complete(again, **sampled)
    assert cached_tokens(moved) == len(again) - len(MORE) - 1
    assert moved["token_ids"] == whole["token_ids"]
    assert moved["logprobs"]["token_logprobs"] == pytest.approx(
        whole["logprobs"]["token_logprobs"], abs=1e-4
    )


def test_a_put_has_the_effect_of_a_pull(workers) -> None:
    one, two = workers
    again = begun(one)
    got = one.client.get("/tangram/caches/t1")
    put = two.client.put("/tangram/caches/t1", content=got.content)
    assert put.json() == {"tokens": len(again) - len(MORE) - 1, "bytes": TOKEN_BYTES * 47}
    assert two.score(again, "t1") == one.score(again, "t1")


def test_a_name_with_a_slash_is_one_trajectory(workers) -> None:
    one, two = workers
    begun(one, "project/t1")
    assert pull(two, "project%2Ft1", one.url).status_code == 200
    assert list(two.cached()) == ["project/t1"]


def test_no_cache_is_said_by_the_source_and_by_the_puller(workers) -> None:
    one, two = workers
    assert one.client.get("/tangram/caches/t9").status_code == 404
    refused = pull(two, "t9", one.url)
    assert (refused.status_code, refused.json()["error"]) == (404, "no_cache")


def test_a_source_that_is_gone_is_an_error_and_leaves_nothing(workers) -> None:
    _, two = workers
    with socket.socket() as nowhere:
        nowhere.bind(("127.0.0.1", 0))
        refused = pull(two, "t1", f"http://127.0.0.1:{nowhere.getsockname()[1]}")
    assert (refused.status_code, refused.json()["error"]) == (502, "source_failed")
    assert two.cached() == {}


@pytest.mark.parametrize("address", ["", "file:///etc/passwd", "http://x/y:1", "http://[::1"])
def test_a_source_that_is_no_address_is_refused(workers, address: str) -> None:
    _, two = workers
    refused = pull(two, "t1", address)
    assert (refused.status_code, "http://HOST:PORT" in refused.text) == (400, True)


@pytest.mark.parametrize("share", [0.0001, 0.5, 0.999])
def test_a_transfer_that_is_interrupted_leaves_nothing(workers, share: float) -> None:
    one, two = workers
    begun(one)
    whole = one.client.get("/tangram/caches/t1").content
    host, port = two.client.base_url.host, two.client.base_url.port
    with socket.create_connection((host, port)) as connection:
        head = f"PUT /tangram/caches/t1 HTTP/1.1\r\nContent-Length: {len(whole)}\r\n\r\n".encode()
        connection.sendall(head + whole[: max(1, int(len(whole) * share))])
        connection.shutdown(socket.SHUT_WR)
        said = connection.recv(4096)
    assert b"400" in said.splitlines()[0]
    assert two.cached() == {}
    assert two.state()["cache_bytes"] == 0


def test_a_source_that_dies_in_a_transfer_leaves_nothing(workers) -> None:
    one, two = workers
    begun(one)
    whole = one.client.get("/tangram/caches/t1").content
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        pulling = pool.submit(pull, two, "t1", f"http://127.0.0.1:{server.getsockname()[1]}")
        connection, _ = server.accept()
        connection.recv(4096)
        connection.sendall(
            f"HTTP/1.1 200 OK\r\nContent-Length: {len(whole)}\r\n\r\n".encode() + whole[:-100]
        )
        connection.close()
        refused = pulling.result()
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_request")
    assert "interrupted" in refused.text
    assert two.cached() == {}


def test_a_client_that_gives_up_a_pull_ends_the_transfer(workers) -> None:
    """The tool is back early: the rest of a transfer that takes too long is not waited for."""
    one, two = workers
    begun(one)
    whole = one.client.get("/tangram/caches/t1").content
    with socket.create_server(("127.0.0.1", 0)) as server:
        body = f'{{"source": "http://127.0.0.1:{server.getsockname()[1]}"}}'.encode()
        head = f"POST /tangram/caches/t1/pull HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((two.client.base_url.host, two.client.base_url.port)) as client:  # fmt: skip
            client.sendall(head.encode() + body)
            sending, _ = server.accept()
            sending.recv(4096)
            sending.sendall(
                f"HTTP/1.1 200 OK\r\nContent-Length: {len(whole)}\r\n\r\n".encode() + whole[:-100]
            )
        sending.sendall(whole[-100:])
        # Closed, and not read to its end.
        with sending, contextlib.suppress(ConnectionResetError):
            while sending.recv(4096):
                pass
    assert two.cached() == {}


def changed(whole: bytes, old: bytes, new: bytes) -> bytes:
    line, _, rest = whole.partition(b"\n")
    assert old in line
    return line.replace(old, new) + b"\n" + rest


@pytest.mark.parametrize(
    ("old", "new", "status", "said"),
    [
        (b'"tiny"', b'"other"', 409, "model"),
        (b'"weights_version": 0', b'"weights_version": 1', 409, "weights_version"),
        (b'"weights": "', b'"weights": "0', 409, "weights"),
        (b"float32", b"float16", 409, "layers"),
        (b"[2, 16]", b"[2, 8]", 409, "layers"),
        (b'"tokens": 47', b'"tokens": 46', 400, "announced"),
        (b'"tokens": 47', b'"tokens": 513', 409, "tokens"),
        (b'"tokens": 47', b'"tokens": 0', 400, "tokens"),
        (b'"ids_sha256": "', b'"ids_sha256": "0', 400, "ids_sha256"),
        (b'"crc32": ', b'"crc32": 1', 400, "crc32"),
        (b"tangram-kv/1", b"tangram-kv/2", 400, "format"),
        (b'{"format"', b'{{"format"', 400, "not a cache"),
    ],
)
def test_a_cache_of_another_model_or_a_damaged_one_is_refused_by_name(
    workers, old: bytes, new: bytes, status: int, said: str
) -> None:
    one, two = workers
    begun(one)
    whole = one.client.get("/tangram/caches/t1").content
    refused = two.client.put("/tangram/caches/t1", content=changed(whole, old, new))
    assert (refused.status_code, said in refused.json()["detail"]) == (status, True), refused.text
    assert two.cached() == {}
    assert two.state()["state"] == "resident"


def test_numbers_that_were_changed_on_their_way_are_refused(workers) -> None:
    one, two = workers
    begun(one)
    whole = bytearray(one.client.get("/tangram/caches/t1").content)
    whole[-5] ^= 1
    refused = two.client.put("/tangram/caches/t1", content=bytes(whole))
    assert (refused.status_code, "crc32" in refused.text) == (400, True)
    assert two.cached() == {}


@pytest.mark.long
def test_a_worker_of_other_weights_refuses_even_with_the_same_version(source, tmp_path) -> None:
    other = write_config(tmp_path, rms_norm_eps=1e-5)
    with TorchWorker(source) as one, TorchWorker(other) as two:
        begun(one)
        two.post("/tangram/weights", {"weights_version": 5, "seed": 8})
        one.post("/tangram/weights", {"weights_version": 5, "seed": 9})
        begun(one)
        refused = pull(two, "t1", one.url)
        assert (refused.status_code, "weights: the cache" in refused.text) == (409, True)


@pytest.mark.long
def test_caches_are_bounded_and_the_one_unused_for_longest_is_dropped(source) -> None:
    room = 3 * 47 * TOKEN_BYTES
    with TorchWorker(source, "--cache-bytes", str(room)) as one, TorchWorker(source) as two:
        for name in ("a", "b", "c"):
            begun(one, name)
        one.complete(PROMPT, "a")
        begun(one, "d")
        assert list(one.cached()) == ["c", "a", "d"]
        assert one.state()["cache_bytes"] == room
        two.complete(list(range(3, 200)), "large")
        refused = pull(one, "large", two.url)
        assert (refused.status_code, refused.json()["error"]) == (413, "cache_too_large")
        assert list(one.cached()) == ["c", "a", "d"]
        assert list(two.cached()) == ["large"], "the source keeps what was not accepted"


def test_a_worker_whose_caches_have_no_room_answers_all_the_same(source) -> None:
    with TorchWorker(source, "--cache-bytes", "0") as one:
        again = begun(one)
        assert cached_tokens(one.complete(again, "t1")) == 0


def test_new_weights_drop_the_caches_and_a_move_does_not_cross_them(workers) -> None:
    one, two = workers
    again = begun(one)
    old, _ = one.score(again)
    state = one.post("/tangram/weights", {"weights_version": 1, "seed": 8})
    try:
        assert (state["weights_version"], state["cache_bytes"], one.cached()) == (1, 0, {})
        new, count = one.score(again, "t1")
        assert (count, new == pytest.approx(old, abs=1e-3)) == (0, False)
        refused = pull(two, "t1", one.url)
        assert (refused.status_code, "weights_version" in refused.text) == (409, True)
        assert list(one.cached()) == ["t1"]
        assert two.cached() == {}
        two.post("/tangram/weights", {"weights_version": 1, "seed": 8})
        assert pull(two, "t1", one.url, keep_source=True).status_code == 200
        assert two.score(again, "t1") == one.score(again, "t1")
    finally:
        for worker in workers:
            worker.post("/tangram/weights", {"weights_version": 0})
    assert one.score(again)[0] == old, "the declared weights are read again"


def test_the_version_that_is_there_changes_nothing(workers) -> None:
    """A trainer repeats a request whose answer it lost."""
    one, _ = workers
    begun(one)
    one.post("/tangram/weights", {"weights_version": 0, "seed": 99})
    assert list(one.cached()) == ["t1"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "weights_version"),
        ({"weights_version": -1}, 400, "weights_version"),
        ({"weights_version": 3, "source": "os:getcwd"}, 400, "other code"),
        ({"weights_version": 3, "source": "/nowhere"}, 422, "/nowhere"),
        ({"weights_version": 3, "mode": "later"}, 400, "drain or abort"),
    ],
)
def test_weights_that_cannot_be_read_leave_the_present_ones(
    workers, body: dict[str, Any], status: int, said: str
) -> None:
    one, _ = workers
    before = one.score(PROMPT)
    begun(one)
    refused = one.ask("/tangram/weights", body)
    assert (refused.status_code, said in refused.text) == (status, True), refused.text
    assert (one.score(PROMPT), list(one.cached())) == (before, ["t1"])
    assert one.state()["weights_version"] == 0


def test_weights_of_other_shapes_are_refused(workers, tmp_path) -> None:
    one, _ = workers
    wider = write_config(tmp_path, intermediate_size=256)
    refused = one.ask("/tangram/weights", {"weights_version": 3, "source": str(wider)})
    assert (refused.status_code, refused.json()["error"]) == (422, "bad_weights")
    assert one.state()["weights_version"] == 0


LONG = {"prompt": PROMPT, "max_tokens": 470, "ignore_eos": True, "stream": True}


def test_new_weights_end_running_answers_that_are_to_be_aborted(workers) -> None:
    """With an error that says to send them again: half an answer of the old weights is none."""
    one, _ = workers
    with one.client.stream("POST", "/v1/completions", json=LONG) as running:
        lines = running.iter_lines()
        next(lines)
        one.post("/tangram/weights", {"weights_version": 2, "seed": 8, "mode": "abort"})
        rest = list(lines)
    one.post("/tangram/weights", {"weights_version": 0})
    assert not any("[DONE]" in line for line in rest)
    assert "aborted" in [line for line in rest if line][-1]


def test_new_weights_wait_for_running_answers_otherwise(workers) -> None:
    one, _ = workers
    with one.client.stream("POST", "/v1/completions", json=LONG) as running:
        lines = running.iter_lines()
        next(lines)
        with ThreadPoolExecutor(1) as pool:
            changing = pool.submit(one.post, "/tangram/weights", {"weights_version": 2, "seed": 8})
            rest = [line for line in lines if line]
            changing.result()
    one.post("/tangram/weights", {"weights_version": 0})
    assert rest[-1] == "data: [DONE]"
    assert not any("aborted" in line for line in rest)


@pytest.mark.long
def test_a_client_that_is_gone_frees_its_place_and_leaves_the_former_cache(source) -> None:
    with TorchWorker(source, "--at-once", "1") as one:
        again = begun(one)
        with one.client.stream(
            "POST", "/v1/completions", json={**LONG, "prompt": again, "max_tokens": 440},
            headers={"X-Tangram-Trajectory": "t1"},
        ) as running:  # fmt: skip
            next(running.iter_lines())
        assert cached_tokens(one.complete(again, "t1")) == len(again) - len(MORE) - 1


def test_sleep_drops_the_caches_and_a_woken_worker_computes_the_whole_prompt(workers) -> None:
    """Fold: what a sleeping worker has is void, so it is moved before, or computed again."""
    one, two = workers
    again = begun(one)
    before = one.score(again)[0]
    assert one.post("/tangram/release")["cache_bytes"] == 0
    for refused in (pull(two, "t1", one.url), pull(one, "t1", two.url)):
        assert (refused.status_code, refused.json()["error"]) == (503, "not_resident")
    one.post("/tangram/restore")
    second = one.complete(again, "t1")
    assert cached_tokens(second) == 0
    assert one.score(again)[0] == before


def test_a_transfer_waits_for_no_running_answer(source) -> None:
    """The only place is taken, and a cache is read beside it."""
    with TorchWorker(source, "--at-once", "1") as one, TorchWorker(source) as two:
        begun(one)
        with one.client.stream("POST", "/v1/completions", json=LONG) as running:
            lines = running.iter_lines()
            next(lines)
            moved = pull(two, "t1", one.url)
            rest = list(lines)
    assert moved.status_code == 200
    assert "data: [DONE]" in rest


@pytest.mark.long
def test_caches_of_models_that_a_service_divides_are_those_of_the_undivided_one(source) -> None:
    """On the processor the devices are all the same; layers, names and weights are what is compared."""
    with TorchWorker(source) as one, TorchWorker(source, "--gpus", "2") as two:
        again = begun(one)
        assert pull(two, "t1", one.url).status_code == 200
        assert two.score(again, "t1")[0] == pytest.approx(one.score(again)[0], abs=1e-4)


def test_parallel_steps_of_one_trajectory_do_not_change_each_other(workers) -> None:
    one, _ = workers
    again = begun(one)
    alone = one.complete(again, seed=1, temperature=3.0)
    gate = threading.Barrier(2)

    def ask(more: int) -> dict[str, Any]:
        gate.wait()
        return one.complete(again, "t1", seed=more, temperature=3.0)

    with ThreadPoolExecutor(2) as pool:
        first, _ = pool.map(ask, (1, 2))
    assert first["token_ids"] == alone["token_ids"]


SHORT = """
import sys
import torch
from managers.gpu.torch_worker.cache_exchange import CacheExchange
from managers.gpu.torch_worker.generation import Caller
from managers.gpu.torch_worker.models import load
from managers.gpu.torch_worker.worker import Declared, Trouble, Worker

class Asking(Caller):
    trajectory = "t1"

served = load(sys.argv[1])
worker = Worker(served, "cpu", Declared())
worker.restore()
body = {"prompt": list(range(3, 43)), "max_tokens": 4}
first = worker.answer("/v1/completions", body, Asking())
caches, forward = served.language.caches, served.module.forward
assert caches.nbytes > 0

def short(*args, **kwargs):
    if caches.nbytes or always:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
    return forward(*args, **kwargs)

served.module.forward, always = short, False
again = worker.answer("/v1/completions", body, Asking())
assert again["choices"] == first["choices"], again
assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
always = True
try:
    worker.answer("/v1/completions", body, Asking())
except Trouble as trouble:
    assert trouble.kind == "out_of_memory", trouble.kind
else:
    raise AssertionError("no memory, and an answer")
"""


def test_caches_give_way_to_a_request_that_finds_no_memory_beside_them(source) -> None:
    """A card is needed for real; here the model says what a card says."""
    done = subprocess.run(
        [PYTHON, "-c", SHORT, str(source)], env=VARIABLES, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_stream_that_cannot_begin_has_the_status_of_its_error(workers) -> None:
    one, _ = workers
    refused = one.ask("/v1/completions", {**LONG, "prompt": [1] * 600})
    assert (refused.status_code, "maximum context length" in refused.text) == (400, True)
