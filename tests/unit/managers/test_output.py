"""Output of an ended command: the pipe is read to its end, without waiting for other holders of it."""

from __future__ import annotations

import os

from managers.cpu.output import Capture


async def test_output_in_the_pipe_is_read() -> None:
    capture = Capture(100)
    os.write(capture.write_end, b"last words")
    assert capture.finish() == "last words"


async def test_a_writer_that_lives_on_is_not_waited_for() -> None:
    capture = Capture(100)
    held = os.dup(capture.write_end)
    capture.spawned()
    os.write(held, b"so far")
    assert capture.finish() == "so far"
    os.close(held)


async def test_a_drain_stops_at_the_limit() -> None:
    capture = Capture(4)
    os.write(capture.write_end, b"12345")
    assert capture.finish() == "1234"
    assert capture.truncated


async def test_closing_twice_is_fine() -> None:
    capture = Capture(4)
    capture.close()
    capture.close()
