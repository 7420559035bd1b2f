"""A signal ends the wait of a Celery worker's event loop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from kombu.asynchronous import Hub

from tangram_web.lib.signal_wakeups import wake_on_signals

LONG_SECONDS = 60.0


@pytest.fixture
def hub() -> Iterator[Hub]:
    handler = signal.signal(signal.SIGUSR2, lambda *_: None)
    found = Hub()
    found.timer.call_after(LONG_SECONDS, lambda: None)
    silent, kept_open = os.pipe()
    found.add_reader(silent, lambda: None)
    yield found
    os.close(silent)
    os.close(kept_open)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGUSR2, handler)
    found.close()


def test_a_loop_that_has_nothing_to_do_goes_round_at_a_signal(hub: Hub) -> None:
    wake_on_signals(hub)
    wake_on_signals(hub)  # after a lost connection
    rounds = hub.create_loop()
    began = time.monotonic()

    os.kill(os.getpid(), signal.SIGUSR2)
    next(rounds)

    assert time.monotonic() - began < LONG_SECONDS / 2
