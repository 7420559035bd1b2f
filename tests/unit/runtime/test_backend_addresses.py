"""Addresses of backends: what is stored can be asked, and what is not is refused."""

from __future__ import annotations

import httpx
import pytest

from contract.rollout_status import BackendStatus, without_address
from domain.backend_addresses import base_address, name_of
from domain.backends import DIALECT_NAMES, LlmBackend, check_backend
from domain.errors import InvalidRequest
from rollout.llm.dialects import DIALECTS


@pytest.mark.parametrize(
    ("stated", "base"),
    [
        ("http://10.0.0.1:8000/v1", "http://10.0.0.1:8000"),
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000"),
        ("https://engines.example/a/v1/", "https://engines.example/a"),
        (" http://[::1]:8000 ", "http://[::1]:8000"),
    ],
)
def test_addresses_are_stored_without_v1(stated, base):
    assert base_address(stated) == base
    assert str(httpx.URL(base)).rstrip("/") == base


@pytest.mark.parametrize(
    "stated",
    [
        "10.0.0.1:8000",
        "ftp://h/",
        "http://",
        "http://u:p@h/",
        "http://h/?key=1",
        "",
        "http://h:70x",
        "http://[::zz]",
        "http://h:70000",
        "http://h:0",
        "http://[fe80::1%eth0]",
        "http://1.2.3.999",
        "http://h h/",
        "http://h/a b",
        "http://\u2603/",
        "http://h/\u2603",
        "http://-h/",
    ],
)
def test_what_is_no_address_of_a_backend_is_refused(stated):
    with pytest.raises(InvalidRequest):
        base_address(stated)


def test_a_backend_of_an_unknown_dialect_is_refused():
    assert sorted(DIALECT_NAMES) == sorted(DIALECTS)
    check_backend(LlmBackend(name="b", address="http://h:1", dialect="vllm"))
    with pytest.raises(InvalidRequest, match="dialect is one of"):
        check_backend(LlmBackend(name="b", address="http://h:1", dialect="grpc"))


@pytest.mark.parametrize(
    "address", ["http://h:1", "http://10.0.0.9:8000", "http://[::1]:8000", "http://[fe80::2]"]
)
def test_a_name_that_is_made_of_an_address_is_shown_as_a_number(address):
    made = without_address(BackendStatus("p", name_of(address), 4, address, 1))
    assert (made.name, made.address) == ("4", "")
    declared = without_address(BackendStatus("p", "own", 4, address, 1))
    assert (declared.name, declared.address) == ("own", "")
