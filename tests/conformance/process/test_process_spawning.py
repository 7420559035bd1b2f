"""Start of a command: its folder, cores, variables and limits."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import Action, ExecSpec, Kind, Outcome
from domain.allocation import Allocation
from domain.ids import ActionId, ResourceId
from domain.ports import ExecResult, RunOrder
from domain.rewards import RewardRule
from managers.common.affinity import confine, usable_cores
from managers.cpu.process import ProcessDriver
from managers.cpu.process.priority import LIGHT_NICE, NO_CORE_NICE
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.isolations import a_driver

Output = Callable[..., Awaitable[ExecResult]]


async def the_result(driver: ProcessDriver, spec: ExecSpec) -> ExecResult:
    report = await driver.run(an_order(spec=spec), lambda: None)
    assert report.outcome is Outcome.COMPLETED
    assert report.result is not None
    return report.result


@pytest.mark.parametrize(
    ("command", "exit_code", "message"),
    [
        (("no-such-program",), 127, "tangram: no-such-program: not found\n"),
        (("/etc/passwd",), 126, "ermission denied"),
        (("./no/such/path",), 127, "tangram: ./no/such/path: not found\n"),
        ((), 127, "empty"),
        (("echo", "a\0b"), 126, "zero byte"),
        (("echo", "x" * 3_000_000), 126, "Argument list too long"),
    ],
    ids=["unknown", "not executable", "no such path", "empty", "zero byte", "too long"],
)
async def test_an_impossible_command_ends_as_in_a_shell(
    driver: ProcessDriver, command: tuple[str, ...], exit_code: int, message: str
) -> None:
    result = await the_result(driver, ExecSpec(command))
    assert result.exit_code == exit_code
    assert message in result.stderr


@pytest.mark.parametrize("word", ["no-such-program", "cd", "./missing", "-n"])
@pytest.mark.parametrize("trajectory", ["trj-1", None])
async def test_a_missing_program_has_one_text_with_a_reward_and_without(
    driver: ProcessDriver, word: str, trajectory: str | None
) -> None:
    order = an_order(word, trajectory=trajectory)
    rewarded = replace(order.action, id=ActionId("act_2"), reward=RewardRule("exit_code"))
    for each in (order, replace(order, action=rewarded)):
        report = await driver.run(each, lambda: None)
        assert report.result is not None, report
        assert (report.result.exit_code, report.result.stderr) == (
            127,
            f"tangram: {word}: not found\n",
        )


@pytest.mark.parametrize("name", ["", "a=b", "a\0b"])
async def test_an_impossible_variable_ends_as_in_a_shell(driver: ProcessDriver, name: str) -> None:
    assert (await the_result(driver, ExecSpec(("true",), env={name: "x"}))).exit_code == 126


async def test_a_command_starts_in_its_workspace(driver: ProcessDriver, isolation: str) -> None:
    await driver.put_file(TRAJECTORY, "src/file", b"x")
    top = (await the_result(driver, ExecSpec(("pwd",)))).stdout.strip()
    assert isolation == "process" or top == "/workspace"
    for cwd in ("src", "/workspace/src", "./src/"):
        result = await the_result(driver, ExecSpec(("pwd",), cwd=cwd))
        assert result.stdout.strip() == f"{top}/src"


#: Directories of the machine, not of the environment.
OUTSIDE = ["..", "/etc", "/", "way-out"]


@pytest.mark.parametrize("cwd", ["missing", "file", "/sys", "/lost/x", "a\0b", *OUTSIDE])
async def test_a_command_never_starts_outside_its_environment(
    driver: ProcessDriver, output: Output, cwd: str, isolation: str
) -> None:
    await output("touch file; ln -s /etc way-out; mkdir real; ln -s real inside")
    result = await the_result(driver, ExecSpec(("pwd",), cwd=cwd))
    if cwd in OUTSIDE and isolation != "process":  # in a sandbox these are in the environment
        assert result.exit_code == 0
        return
    assert (result.exit_code, result.stdout) == (126, "")
    assert "cwd" in result.stderr or "zero byte" in result.stderr
    assert (await the_result(driver, ExecSpec(("pwd",), cwd="inside"))).exit_code == 0


async def test_the_workspace_lasts_as_long_as_the_trajectory(output: Output) -> None:
    await output("echo kept > note")
    assert (await output("cat note")).stdout == "kept\n"


async def test_an_action_without_a_trajectory_leaves_nothing(
    driver: ProcessDriver, tmp_path: Path
) -> None:
    order = an_order("sh", "-c", "mkdir -p a/b; touch a/b/c; chmod 0 a", trajectory=None)
    report = await driver.run(order, lambda: None)
    assert report.result is not None
    assert report.result.exit_code == 0
    assert list((tmp_path / "state" / "alone").iterdir()) == []
    assert list((tmp_path / "state" / "yard").iterdir()) == []


async def test_nothing_of_the_workers_environment_leaks(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "hunter2")
    result = await output(
        "cat /proc/self/environ /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | cut -d= -f1",
        env={"MINE": "1"},
    )
    names = set(result.stdout.split())
    assert {"PATH", "HOME", "LANG", "MINE", "TANGRAM_ACTION_ID", "TANGRAM_UNITS"} <= names
    own = await output("env | cut -d= -f1 | sort", env={"MINE": "1"})
    assert set(own.stdout.split()) <= {
        "HOME", "LANG", "MINE", "OMP_NUM_THREADS", "PATH", "PWD", "OLDPWD", "SHLVL", "_",
        "TANGRAM_ACTION_ID", "TANGRAM_RUN", "TANGRAM_UNITS",
    }  # fmt: skip


async def test_declared_variables_reach_the_command_as_they_are(driver: ProcessDriver) -> None:
    env = {"PLAIN": "a b\n$c", "odd.name": "x", "HOME": "/elsewhere", "TANGRAM_ACTION_ID": "fake"}
    script = "print(*(os.environ[n] for n in ('PLAIN', 'odd.name', 'HOME', 'TANGRAM_ACTION_ID')))"
    command = ("python3", "-c", f"import os; {script}")
    result = await the_result(driver, ExecSpec(command, env=env))
    assert result.stdout == "a b\n$c x /elsewhere act_1\n"


async def test_units_are_reported_and_put_in_place(driver: ProcessDriver) -> None:
    real = usable_cores()
    beyond = max(real) + 1
    action = Action(
        id=ActionId("act_1"),
        project="lab",
        task="swe",
        kind=Kind.EXEC,
        exec=ExecSpec(("sh", "-c", "echo {units} $TANGRAM_UNITS $OMP_NUM_THREADS n={units}")),
    )
    cores = Allocation(ResourceId("cpu:n1"), 4000, (0, 1, 2, beyond))
    licences = Allocation(ResourceId("license"), 2000)
    report = await driver.run(RunOrder(action, (licences, cores)), lambda: None)
    assert report.result is not None
    assert report.result.stdout == "4 4 4 n=4\n"
    action.key = "license"
    report = await driver.run(RunOrder(action, (licences, cores), 2), lambda: None)
    assert report.result is not None
    assert report.result.stdout == "2 2 4 n=2\n"
    light = Allocation(ResourceId("cpu:n1"), 100, (0,), shared=True)
    action.key = None
    report = await driver.run(RunOrder(action, (light,), 3), lambda: None)
    assert report.result is not None
    assert report.result.stdout == "1 1 1 n=1\n"


async def test_a_command_is_pinned_to_its_cores(driver: ProcessDriver) -> None:
    real = usable_cores()
    invented = max(real) + 1
    script = "import os; print(sorted(os.sched_getaffinity(0)))"
    for attempt, (units, expected) in enumerate(
        [
            ((real[0],), [real[0]]),
            ((real[-1],), [real[-1]]),
            ((invented,), [real[invented % len(real)]]),
            ((), list(real)),
        ]
    ):
        granted = (Allocation(ResourceId("cpu:n1"), 1000 * len(units), units),) if units else ()
        order = an_order("python3", "-c", script, attempt=attempt + 1)
        report = await driver.run(RunOrder(order.action, granted, order.attempt), lambda: None)
        assert report.result is not None
        assert report.result.stdout.strip() == str(expected)
    assert tuple(sorted(os.sched_getaffinity(0))) == real, "the worker itself is not pinned"


@pytest.mark.parametrize(
    ("granted", "nice"),
    [
        (Allocation(ResourceId("cpu:n1"), 1000, (0,)), 0),
        (Allocation(ResourceId("cpu:n1"), 100, (0,), shared=True), LIGHT_NICE),
        (None, NO_CORE_NICE),
    ],
    ids=["a core", "light", "no core"],
)
async def test_a_command_without_a_core_of_its_own_yields_to_those_that_have_one(
    driver: ProcessDriver, granted: Allocation | None, nice: int
) -> None:
    # Its children have it as well, whenever it was set.
    script = f"import os\nwhile os.nice(0) < {nice}: pass\nos.execvp('nice', ['nice'])"
    order = an_order("python3", "-c", script)
    run = RunOrder(order.action, () if granted is None else (granted,))
    report = await driver.run(run, lambda: None)
    assert report.result is not None
    assert report.result.stdout.strip() == str(max(nice, os.nice(0)))


async def test_a_command_gets_its_core_although_the_worker_is_confined_to_another(
    driver: ProcessDriver,
) -> None:
    real = usable_cores()
    script = "import os; print(sorted(os.sched_getaffinity(0)))"
    order = an_order("python3", "-c", script)
    granted = (Allocation(ResourceId("cpu:n1"), 1000, (real[0],)),)
    try:
        for attempt in (1, 2):
            confine(os.getpid(), {real[-1]})
            report = await driver.run(RunOrder(order.action, granted, attempt), lambda: None)
            assert report.result is not None
            assert report.result.stdout.strip() == str([real[0]])
            assert os.sched_getaffinity(0) == {real[-1]}
    finally:
        confine(os.getpid(), real)


async def test_limits_hold(tmp_path: Path, isolation: str) -> None:
    driver = a_driver(tmp_path, isolation, max_file_bytes="4096", max_open_files="64")
    await driver.open()
    script = "ulimit -c; ulimit -n; head -c 10000 /dev/zero > big; wc -c < big"
    result = await the_result(driver, ExecSpec(("sh", "-c", script)))
    await driver.close()
    assert result.stdout.split() == ["0", "64", "4096"]


async def test_a_sandboxed_command_sees_neither_the_worker_nor_the_network(
    output: Output, isolation: str, tmp_path: Path
) -> None:
    script = f"""
        ls /proc | grep -c '^[0-9]*$'; test -e {tmp_path} && echo sees the state
        touch /usr/mark /etc/mark 2>/dev/null && echo writes the system
        grep -c : /proc/net/dev"""
    result = await output(script)
    if isolation != "process":
        processes, interfaces = map(int, result.stdout.split())
        assert processes < 10
        assert interfaces == 1, "the loopback alone"


async def test_a_declared_library_is_not_loaded_outside_of_the_sandbox(
    output: Output, isolation: str
) -> None:
    """The shell and bwrap around a sandboxed command must not see declared variables."""
    script = "tr '\\0' '\\n' < /proc/1/environ | grep -c LD_PRELOAD"
    result = await output(script, env={"LD_PRELOAD": "/workspace/evil.so"})
    if isolation == "bwrap":
        assert result.stdout == "0\n"


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
async def test_a_full_machine_is_not_the_commands_fault(
    driver: ProcessDriver, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("managers.cpu.process.launcher.subprocess.Popen", refuse)
    report = await driver.run(an_order("true"), lambda: None)
    assert report.outcome is Outcome.INFRA_FAILED
    assert report.never_started
    monkeypatch.undo()
    assert (await driver.run(an_order("true"), lambda: None)).outcome is Outcome.COMPLETED


async def test_a_start_that_cannot_be_reported_ends_the_process(driver: ProcessDriver) -> None:
    def cannot_tell() -> None:
        raise RuntimeError("connection lost")

    report = await driver.run(an_order("sleep", "600"), cannot_tell)
    assert report.outcome is Outcome.INFRA_FAILED
    assert not report.never_started
    assert "connection lost" in (report.detail or "")


async def test_a_command_sees_the_gpus_that_it_was_granted(driver: ProcessDriver) -> None:
    spec = ExecSpec(command=("printenv", "CUDA_VISIBLE_DEVICES"), env={"CUDA_VISIBLE_DEVICES": "7"})
    order = an_order(spec=spec)
    chunk = Allocation(ResourceId("gpu:n1"), 2000, (2, 3))
    report = await driver.run(replace(order, allocations=(*order.allocations, chunk)), lambda: None)

    assert report.result is not None
    assert report.result.stdout == "2,3\n"
