"""The tests of the process driver, on isolation ``apptainer``: all of a module, or left out with its reason.

Every test here opens a driver, which tries the program three times, so a test that says nothing about Apptainer is left to
bubblewrap (``tests/conformance/process``). Of a test with many values, one shows that the way through Apptainer is the same.
A name that is left out and is no test any more fails, so the lists cannot grow old.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.conformance.process import (
    test_process_ending,
    test_process_files,
    test_process_output,
    test_process_resizing,
    test_process_rewards,
    test_process_spawning,
)

MODULES: Final = (
    test_process_ending, test_process_files, test_process_output, test_process_resizing, test_process_rewards,
    test_process_spawning,
)  # fmt: skip
_FILES = (
    "the worker opens and deletes files below the folder of an environment, without a container"
)
_OUTPUT = "the worker cuts and decodes what a pipe gave, whatever wrote in it"
_EVIDENCE = "the worker decides about a reward by a file that it opens itself"
_LAUNCHER = "the launcher fails before it starts any program of isolation"
#: Test → why it says nothing about Apptainer.
LEFT_OUT: Final = {
    "test_nothing_of_the_workers_environment_leaks": "Apptainer adds variables of its own to those that are listed there;"
    " test_apptainer_environments has the same test with them",
    "test_programs_of_the_environment_are_frozen_while_a_reward_runs": "a reward ends the living environment here;"
    " test_apptainer_environments shows that it runs alone",
    "test_a_link_is_not_followed": _FILES,
    "test_a_special_file_is_refused": _FILES,
    "test_a_file_that_is_too_large_is_refused_whole": _FILES,
    "test_workspaces_are_private_and_named_safely": _FILES,
    "test_links_in_a_removed_environment_are_not_followed": _FILES,
    "test_an_environment_deeper_than_any_path_is_removed": _FILES,
    "test_each_stream_is_kept_up_to_the_limit": _OUTPUT,
    "test_a_limit_of_exactly_what_is_printed_cuts_nothing": _OUTPUT,
    "test_a_character_cut_in_half_is_left_out": _OUTPUT,
    "test_output_that_is_no_text_is_replaced": _OUTPUT,
    "test_the_loop_stays_free_while_a_command_prints_without_end": _OUTPUT,
    "test_unread_input_harms_nothing": _OUTPUT,
    "test_without_input_there_is_nothing_to_read": _OUTPUT,
    "test_another_attempt_is_left_alone": "the driver compares attempts before it looks at processes",
    "test_a_file_of_an_earlier_command_is_no_evidence": _EVIDENCE,
    "test_a_link_to_a_file_is_no_evidence": _EVIDENCE,
    "test_a_command_that_was_stopped_has_no_reward": _EVIDENCE,
    "test_an_impossible_variable_ends_as_in_a_shell": _LAUNCHER,
    "test_a_full_machine_is_not_the_commands_fault": _LAUNCHER,
    "test_a_start_that_cannot_be_reported_ends_the_process": _LAUNCHER,
}
#: Tests of which one value is enough here: the others differ in what a program does, or in what the worker decides.
ONE_VALUE: Final = frozenset({
    "test_leftover_processes_of_a_command_without_an_environment_are_ended_with_it",
    "test_processes_that_shed_their_tag_are_ended_with_the_action",
    "test_ending_an_action_ends_all_of_it_and_says_so",
    "test_an_exit_code_is_a_reward_only_as_0_or_1",
    "test_without_the_runners_report_there_is_no_reward",
    "test_pytest_is_rewarded_by_its_own_report",
    "test_a_reward_command_reads_the_files_of_the_submitter",
    "test_an_impossible_command_ends_as_in_a_shell",
    "test_a_missing_program_has_one_text_with_a_reward_and_without",
    "test_a_command_without_a_core_of_its_own_yields_to_those_that_have_one",
})  # fmt: skip


def _of_one_value(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a test with the first of its values alone."""
    assert isinstance(test, types.FunctionType)
    made = types.FunctionType(test.__code__, test.__globals__, test.__name__)
    made.__dict__.update(vars(test))
    made.__annotations__ = test.__annotations__
    marks = [_of_one(mark) for mark in vars(test)["pytestmark"]]
    vars(made)["pytestmark"] = marks
    assert marks != vars(test)["pytestmark"], f"{test.__name__} has one value"
    return made


def _of_one(mark: pytest.Mark) -> pytest.Mark:
    if mark.name != "parametrize":
        return mark
    names, values = mark.args
    options = dict(mark.kwargs)
    if "ids" in options:
        options["ids"] = list(options["ids"])[:1]
    return pytest.mark.parametrize(names, list(values)[:1], **options).mark


def _taken() -> dict[str, object]:
    found: dict[str, object] = {}
    for module in MODULES:
        for name, value in vars(module).items():
            is_test = name.startswith("test_") and callable(value)
            if (is_test and name not in LEFT_OUT) or "ixture" in type(value).__name__:
                assert name not in found or not is_test, f"two tests are named {name}"
                found[name] = _of_one_value(value) if name in ONE_VALUE else value
    return found


globals().update({name: value for name, value in _taken().items() if name != "driver"})


def test_what_is_left_out_is_still_a_test_and_has_a_reason() -> None:
    known = {name for module in MODULES for name in vars(module)}
    assert [name for name, why in LEFT_OUT.items() if name not in known or len(why) < 20] == []
    assert ONE_VALUE - known == set()
    assert not ONE_VALUE & LEFT_OUT.keys()
