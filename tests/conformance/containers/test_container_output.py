"""The end of an action and what it printed cannot be forged, stolen or kept busy."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest

from domain.action import PYTEST_XDIST, ExecSpec, Outcome
from domain.ports import ExecResult
from managers.cpu.containers import ContainerDriver
from managers.cpu.kept_output import missing_mark
from tests.conformance.conftest import Shell
from tests.conformance.driver import TRAJECTORY, an_order

Output = Callable[..., Awaitable[ExecResult]]
MEGABYTE = 2**20

pytestmark = pytest.mark.slow

#: What a command may try so that its failure passes for a success.
FORGERIES = {
    "prints what the shell would answer": (
        "for n in $(seq 50); do echo $n 0; done; printf '\\001\\000\\000\\000\\000\\000\\000\\0043 0\\n'"
    ),
    "writes to the descriptors of the first process": (
        "for n in 0 1 2 3 9; do echo 1 0 > /proc/1/fd/$n; done"
    ),
    "writes to the descriptors of its parent": (
        "for n in 0 1 2 3 9; do echo 1 0 > /proc/$PPID/fd/$n; done"
    ),
    "looks into the memory of the first process": (
        "python3 -c \"open('/proc/1/mem','rb').read(1)\"; cat /proc/1/environ /proc/1/maps"
    ),
    "kills the first process": "kill -9 1; kill -TERM 1; kill -INT 1; kill -STOP 1; kill -HUP 1",
    "kills its parent": '[ "$PPID" = 0 ] || kill -STOP "$PPID"',
    "traps its end": "trap 'exit 0' TERM INT",
    "steals the input": "cat /proc/1/fd/0 & head -c 1 <&0",
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
async def test_an_exit_status_cannot_be_forged(shell: Shell, output: Output, forgery: str) -> None:
    report = await shell(f"({forgery}) 2>/dev/null; exit 42")
    assert report.outcome is Outcome.COMPLETED
    assert report.result is not None
    assert report.result.exit_code == 42
    assert (await output("echo still there")).stdout == "still there\n"


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 3", 3), ("exec sh -c 'exit 4'", 4), ("trap 'exit 5' EXIT; exit 0", 5),
     ("kill -9 $$", 137), ("kill -TERM $$", 143), ("set -e; false; true", 1)],
)  # fmt: skip
async def test_words_of_the_shell_concern_the_command_alone(
    output: Output, script: str, status: int
) -> None:
    assert (await output(script)).exit_code == status
    assert (await output("exit 0")).exit_code == 0


@pytest.mark.parametrize("builtin", ["exit", "exec", "trap", "cd", "eval", "set"])
async def test_a_word_of_the_shell_is_no_command(driver: ContainerDriver, builtin: str) -> None:
    report = await driver.run(an_order(builtin, "1"), lambda: None)
    assert report.outcome is Outcome.COMPLETED
    assert report.result is not None
    assert report.result.exit_code == 127


async def test_a_command_that_is_not_there_is_data(driver: ContainerDriver) -> None:
    report = await driver.run(an_order("no-such-command"), lambda: None)
    assert report.result is not None
    assert (report.outcome, report.result.exit_code) == (Outcome.COMPLETED, 127)
    assert report.result.stderr == "tangram: no-such-command: not found\n"


async def test_a_directory_that_is_not_there_is_data(driver: ContainerDriver) -> None:
    order = an_order(spec=ExecSpec(("true",), cwd="nowhere"))
    report = await driver.run(order, lambda: None)
    assert report.result is not None
    assert (report.outcome, report.result.exit_code) == (Outcome.COMPLETED, 126)


async def test_background_jobs_that_hold_the_output_are_not_waited_for(
    shell: Shell, way: str
) -> None:
    began = time.monotonic()
    report = await shell("echo said; sleep 600 & sleep 600 & exit 7")
    assert time.monotonic() - began < 20
    assert report.result is not None
    assert (report.result.exit_code, report.result.stdout) == (7, "said\n")
    known = {"direct": "left 2 processes in the background", "api": "it left behind"}
    assert known[way] in (report.detail or "")


async def test_a_hundred_megabytes_are_cut_and_do_not_block(shell: Shell, output: Output) -> None:
    result = await output(f"head -c {100 * MEGABYTE} /dev/zero | tr '\\0' x; exit 9", limit=1000)
    size = 100 * MEGABYTE
    kept = "x" * 250 + missing_mark(size - 1000, size) + "x" * 750
    assert (result.exit_code, result.stdout) == (9, kept)
    assert (result.truncated, result.stdout_bytes) == (True, size)


async def test_output_of_any_bytes_is_returned(output: Output) -> None:
    result = await output("printf 'a\\000b\\377\\n'; printf 'e\\303\\251' >&2")
    assert (result.stdout, result.stderr) == ("a\0b\N{REPLACEMENT CHARACTER}\n", "eé")


async def test_a_command_may_close_everything(output: Output) -> None:
    assert (await output("exec 0<&- 1>&- 2>&-; exit 6")).exit_code == 6


async def test_standard_input_arrives_whole(output: Output) -> None:
    text = "it's $HOME `x`\n" * 20_000
    assert (await output("cat | md5sum; cat", stdin=text)).stdout.endswith("-\n")
    assert (await output("wc -c", stdin=text)).stdout.strip() == str(len(text))
    assert (await output("cat")).stdout == ""


async def test_arguments_and_variables_arrive_as_they_are(driver: ContainerDriver) -> None:
    odd = 'it\'s "$HOME" `x` \\ \n\t* é'
    spec = ExecSpec(("printf", "%s|", odd, "", "-n"))
    report = await driver.run(an_order(spec=spec), lambda: None)
    assert report.result is not None
    assert report.result.stdout == f"{odd}||-n|"
    spec = ExecSpec(("env", "-0"), env={"A": odd, "b.c": "1", "TANGRAM_UNITS": "9"})
    report = await driver.run(an_order(spec=spec), lambda: None)
    assert report.result is not None
    found = set(report.result.stdout.split("\0"))
    assert {f"A={odd}", "b.c=1", "TANGRAM_ACTION_ID=act_1", "TANGRAM_UNITS=1"} <= found


async def test_pytest_gets_as_many_workers_as_units_when_asked_for(driver: ContainerDriver) -> None:
    test = b"import os\ndef test_it(): assert os.environ['PYTEST_XDIST_WORKER_COUNT'] == '1'\n"
    await driver.put_file(TRAJECTORY, "test_it.py", test)
    for rewrite, exit_code in ((None, 1), (PYTEST_XDIST, 0)):
        spec = ExecSpec(("python3", "-m", "pytest", "-q"), rewrite=rewrite)
        report = await driver.run(an_order(spec=spec), lambda: None)
        assert report.result is not None
        assert report.result.exit_code == exit_code, report
