"""The blocking client is the asynchronous one without its coroutines."""

from __future__ import annotations

from tests.architecture.sync_client import TARGET, generated


def test_blocking_calls_are_generated_from_the_asynchronous_ones():
    assert TARGET.read_text() == generated(), "run `python -m tests.architecture.sync_client`"
