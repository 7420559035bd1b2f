"""The seccomp profile, by a small interpreter of the BPF program that the kernel gets."""

from __future__ import annotations

import errno
import struct

import pytest

from managers.cpu.process.seccomp import (
    ARCHITECTURES,
    CLONE3,
    REFUSED,
    oci_profile,
    program_for,
)

ALLOWED, KIND, VALUE = 0x7FFF_0000, 0xFFFF_0000, 0xFFFF
ERRNO = 0x0005_0000
CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWTIME = 0x1000_0000, 0x4000_0000, 0x80
CLONE_FILES, CLONE_VM, SIGCHLD = 0x400, 0x100, 17
TIOCSTI, TIOCLINUX, TCGETS = 0x5412, 0x541C, 0x5401
FOREIGN_ABIS = {"i386": 0x4000_0003, "arm": 0x4000_0028, "other": 0xC000_0016}


def answer(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """Interpret the program for one call; return 0 when it is allowed, else the errno."""
    program = program_for(machine)
    assert program is not None
    steps = list(struct.iter_unpack("<HBBI", program))
    values = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    abi = ARCHITECTURES[machine].audit if audit is None else audit
    data = struct.pack("<IIQ6Q", number, abi, 0, *values)
    at, accumulator = 0, 0
    while True:
        code, true, false, value = steps[at]
        at += 1
        if code == 0x20:
            [accumulator] = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            assert value == ALLOWED or value & KIND == ERRNO
            return 0 if value == ALLOWED else value & VALUE
        else:
            test = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: accumulator & value,
            }
            at += true if test[code] else false


@pytest.fixture(params=sorted(ARCHITECTURES))
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", REFUSED)
def test_each_listed_call_is_refused(machine, name):
    number = REFUSED[name][ARCHITECTURES[machine].column]
    if number is not None:
        assert answer(machine, number) == errno.EPERM


def test_calls_that_are_not_listed_are_allowed(machine):
    listed = {pair[ARCHITECTURES[machine].column] for pair in REFUSED.values()}
    asked = ARCHITECTURES[machine]
    special = {CLONE3, asked.clone, asked.unshare, asked.ioctl}
    others = set(range(470)) - listed - special
    assert {number for number in others if answer(machine, number)} == set()


@pytest.mark.parametrize("flags", [CLONE_NEWUSER | SIGCHLD, CLONE_NEWNET, 0x0002_0000, 0x0200_0000])
def test_a_process_cannot_be_cloned_into_a_namespace(machine, flags):
    assert answer(machine, ARCHITECTURES[machine].clone, flags) == errno.EPERM


def test_plain_processes_and_threads_are_cloned(machine):
    assert answer(machine, ARCHITECTURES[machine].clone, SIGCHLD) == 0
    assert answer(machine, ARCHITECTURES[machine].clone, CLONE_VM | CLONE_FILES | SIGCHLD) == 0


@pytest.mark.parametrize("flags", [CLONE_NEWUSER, CLONE_NEWTIME, CLONE_NEWUSER | CLONE_FILES])
def test_a_process_cannot_unshare_a_namespace(machine, flags):
    assert answer(machine, ARCHITECTURES[machine].unshare, flags) == errno.EPERM


def test_a_process_may_unshare_its_descriptors(machine):
    assert answer(machine, ARCHITECTURES[machine].unshare, CLONE_FILES) == 0


def test_clone3_is_unknown_so_that_libraries_use_clone(machine):
    assert answer(machine, CLONE3) == errno.ENOSYS


@pytest.mark.parametrize("high", [0, 1 << 32])
@pytest.mark.parametrize("command", [TIOCSTI, TIOCLINUX])
def test_input_cannot_be_typed_into_a_terminal(machine, command, high):
    assert answer(machine, ARCHITECTURES[machine].ioctl, 0, command | high) == errno.EPERM


def test_other_commands_of_terminals_are_allowed(machine):
    assert answer(machine, ARCHITECTURES[machine].ioctl, 0, TCGETS) == 0


@pytest.mark.parametrize("abi", FOREIGN_ABIS)
def test_calls_of_another_abi_are_refused(machine, abi):
    assert answer(machine, 39, audit=FOREIGN_ABIS[abi]) == errno.EPERM


def test_calls_of_the_x32_abi_are_refused():
    assert answer("x86_64", 0x4000_0000 + 39) == errno.EPERM


def test_an_unknown_architecture_has_no_filter():
    assert program_for("riscv64") is None


def test_a_profile_in_the_form_of_the_oci_refuses_the_same_calls():
    profile = oci_profile()
    rules = [(name, rule) for rule in profile["syscalls"] for name in rule["names"]]
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert {rule["action"] for _, rule in rules} == {"SCMP_ACT_ERRNO"}
    assert {name for name, rule in rules if not rule["args"]} == set(REFUSED)
    for name, flags in (
        ("clone", {CLONE_NEWUSER, CLONE_NEWNET}),
        ("unshare", {CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWTIME}),
    ):
        tests = [rule["args"] for each, rule in rules if each == name]
        assert all(test["op"] == "SCMP_CMP_MASKED_EQ" for [test] in tests)
        assert flags <= {test["value"] for [test] in tests if test["value"] == test["valueTwo"]}
    assert CLONE_NEWTIME not in [
        rule["args"][0]["value"] for name, rule in rules if name == "clone"
    ]
    # One error for all: libraries would take EPERM for the failure of a thread, and end.
    assert "clone3" not in dict(rules)
