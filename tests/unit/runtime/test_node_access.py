"""What the keeper of node access does in a pass: users follow the wishes, and an operator's users stay."""

from __future__ import annotations

from contract.node_access import AccessDone, NodeAccess
from scheduler.runtime.node_access import AccessStep, access_steps

IN = NodeAccess(version="2", digest="ab" * 32)
OUT = NodeAccess(version="2")
DONE = AccessDone(version="2")
BEFORE = AccessDone(version="1")


def step(
    access: NodeAccess | None, done: AccessDone | None = None, *, there: bool = False,
    revoked: bool = False, repaired: bool = True,
) -> AccessStep | None:  # fmt: skip
    """Return the step for one node."""

    def has(it: bool) -> set[str]:
        return {"n"} if it else set()

    wanted = {} if access is None else {"n": access}
    noted = {} if done is None else {"n": done}
    return access_steps(wanted, noted, has(there), has(revoked), has(repaired)).get("n")


def test_a_new_node_gets_a_user_once() -> None:
    assert step(IN) is AccessStep.ADMIT
    assert step(IN, DONE, there=True) is None


def test_a_user_of_an_operator_is_not_replaced_unless_its_node_was_revoked() -> None:
    assert step(IN, there=True) is AccessStep.REFUSE
    assert step(IN, there=True, revoked=True) is AccessStep.ADMIT
    assert step(IN, AccessDone(version="2", error="refused"), there=True) is None


def test_a_node_that_is_admitted_again_gets_another_user() -> None:
    assert step(IN, BEFORE, there=True) is AccessStep.ADMIT


def test_a_keeper_that_ended_within_a_step_repeats_it() -> None:
    assert step(IN, AccessDone(version=""), there=True) is AccessStep.ADMIT
    assert step(None, AccessDone(version=""), there=True) is AccessStep.DROP


def test_a_user_that_is_missing_or_has_old_rules_is_made_again_without_a_loss() -> None:
    assert step(IN, DONE) is AccessStep.REPAIR
    assert step(IN, DONE, there=True, repaired=False) is AccessStep.REPAIR


def test_a_revoked_node_has_no_user_and_gets_none_back() -> None:
    assert step(OUT, BEFORE, there=True) is AccessStep.EXPEL
    assert step(OUT) is AccessStep.EXPEL
    assert step(OUT, DONE) is None
    assert step(OUT, DONE, there=True) is AccessStep.EXPEL


def test_an_admission_that_was_taken_back_leaves_nothing() -> None:
    assert step(None, DONE, there=True) is AccessStep.DROP
    assert step(None) is None
