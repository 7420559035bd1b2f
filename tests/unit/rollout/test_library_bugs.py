"""Bugs of the demo are real: one changed expression, tests that notice it, and tests that do not."""

from __future__ import annotations

import ast

from examples.rollouts.demo_policies import POLICIES, policy_of
from examples.rollouts.library_bugs import LibraryBug, changes, written_tests

SOURCE = """def f(a, b):
    \"\"\"1 == 2 + 3\"\"\"
    if a == b and a not in (1, 2):
        return a + 1
    return "%s" % a
"""
BUG = LibraryBug(
    name="lib-0", library="lib", files={"lib.py": "x = 1\ny = 1\nx = 2\ny = 1\n"}, path="lib.py", line=4,
    right="y = 0", wrong="y = 1", tests=written_tests("lib", {"y": ["lib.y == 0"]}), failing=["test_y_0"], passing=[],
)  # fmt: skip


def test_each_change_is_one_expression_and_leaves_python() -> None:
    found = changes(SOURCE)

    assert {(each.right, each.wrong) for each in found} == {
        ("==", "!="), ("and", "or"), ("not in", "in"), ("+", "-"), ("1", "2"), ("2", "3"),
    }  # fmt: skip
    for change in found:
        broken = change.applied(SOURCE)
        ast.parse(broken)
        assert broken != SOURCE
        assert "1 == 2 + 3" in broken


def test_an_instance_has_the_bug_and_hides_its_tests() -> None:
    data = BUG.data()

    assert data["files"]["lib.py"] == BUG.files["lib.py"]
    assert "tests/test_lib.py" not in data["files"]
    assert data["FAIL_TO_PASS"] == ["tests/test_lib.py::test_y_0"]
    assert "assert lib.y == 0" in data["problem_statement"]


def test_the_agent_that_fixes_edits_a_text_that_is_unique() -> None:
    edit = next(turn for turn in policy_of(0).turns(BUG) if "old_str" in turn)

    assert r'"old_str": "x = 2\ny = 1"' in edit
    assert r'"new_str": "x = 2\ny = 0"' in edit


def test_one_policy_of_the_demo_deserves_a_reward() -> None:
    assert [policy.reward for policy in POLICIES] == [1.0, 0.0, 0.0, 0.0]
    assert policy_of(4) is policy_of(0)
