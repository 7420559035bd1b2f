"""A fold wakes its wide worker only on GPUs that are free, and its narrow workers return whatever fails."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from placement.fold import Fold
from placement.folding import Folding, FoldStage, WorkerOrder

WIDE = 9
FOLD = Fold(WIDE, (1, 2), ("a",), 40.0, 20.0)


def sleep(*workers):
    return [WorkerOrder("sleep", worker) for worker in workers]


def wake(*workers):
    return [WorkerOrder("wake", worker) for worker in workers]


def stop(*workers):
    return [WorkerOrder("stop", worker) for worker in workers]


def after(*reports):
    """Return the fold after reports, as (method, argument …), and all orders."""
    folding, orders = Folding(FOLD), []
    for name, *arguments in reports:
        folding, more = getattr(folding, name)(*arguments)
        orders += more
    return folding, orders


IDLE = (("became_idle", 1), ("became_idle", 2))
ASLEEP = (*IDLE, ("slept", 1), ("slept", 2))
FOLDED = (*ASLEEP, ("woke", WIDE))


def test_narrow_workers_sleep_when_all_are_idle_and_then_the_wide_one_wakes():
    assert after(("became_idle", 2))[1] == []
    assert after(*IDLE)[1] == sleep(1, 2)
    assert after(*IDLE, ("slept", 2))[1] == sleep(1, 2)
    assert after(*ASLEEP)[1] == [*sleep(1, 2), *wake(WIDE)]
    assert after(*FOLDED)[0].stage is FoldStage.FOLDED


def test_only_the_wide_worker_serves_a_fold():
    assert after(*ASLEEP)[0].serving == ()
    assert after(*FOLDED)[0].serving == (WIDE,)


def test_narrow_workers_return_when_the_wide_one_does_not_wake():
    failed = (*ASLEEP, ("failed_at", WIDE, "no answer in 60 s"))

    assert after(*failed)[1][-1:] == stop(WIDE)
    folding, orders = after(*failed, ("slept", WIDE))
    assert orders[-2:] == wake(1, 2)
    assert folding.stage is FoldStage.RETURNING
    folding, _ = after(*failed, ("slept", WIDE), ("woke", 2))
    assert folding.serving == (2,)
    folding, _ = after(*failed, ("slept", WIDE), ("woke", 2), ("woke", 1))
    assert (folding.stage, folding.serving) == (FoldStage.RETURNED, (1, 2))
    assert folding.failed == "no answer in 60 s"


def test_a_wide_worker_that_is_not_stopped_is_stopped_again():
    failed = (*ASLEEP, ("failed_at", WIDE, "late"), ("failed_at", WIDE, "still there"))

    folding, orders = after(*failed)

    assert orders[-2:] == stop(WIDE, WIDE)
    assert folding.stage is FoldStage.CLEARING


def test_a_wide_worker_that_dies_while_it_serves_returns_the_narrow_ones():
    folding, orders = after(*FOLDED, ("failed_at", WIDE, "died"), ("slept", WIDE))

    assert orders[-3:] == [*stop(WIDE), *wake(1, 2)]
    assert folding.serving == ()


def test_a_failure_before_any_worker_sleeps_changes_nothing():
    folding, orders = after(("became_idle", 1), ("failed_at", WIDE, "died"))

    assert (folding.stage, folding.serving, orders) == (FoldStage.RETURNED, (1, 2), [])


def test_a_narrow_worker_that_does_not_sleep_is_lost_and_the_others_return():
    folding, orders = after(*IDLE, ("failed_at", 1, "engine refused"), ("slept", 2))

    assert orders == [*sleep(1, 2), *wake(2)]
    folding, _ = folding.woke(2)
    assert (folding.stage, folding.serving, folding.lost) == (FoldStage.RETURNED, (2,), (1,))


def test_a_narrow_worker_that_does_not_wake_is_lost():
    folding, _ = after(
        *ASLEEP, ("failed_at", WIDE, "late"), ("slept", WIDE), ("failed_at", 1, "died"), ("woke", 2)
    )

    assert (folding.stage, folding.serving) == (FoldStage.RETURNED, (2,))


def test_a_fold_that_is_ended_on_purpose_returns_without_a_failure():
    folding, orders = after(*FOLDED, ("end",), ("slept", WIDE), ("woke", 1), ("woke", 2))

    assert orders[-3:] == [*sleep(WIDE), *wake(1, 2)]
    assert (folding.stage, folding.failed) == (FoldStage.RETURNED, "")


def test_a_fold_that_is_ended_on_its_way_returns():
    assert after(("end",))[0].stage is FoldStage.RETURNED
    assert after(*IDLE, ("end",), ("slept", 1), ("slept", 2))[1] == [*sleep(1, 2), *wake(1, 2)]
    assert after(*ASLEEP, ("end",), ("slept", WIDE))[1][-3:] == [*stop(WIDE), *wake(1, 2)]


def test_a_repeated_report_changes_nothing():
    assert after(*IDLE, *IDLE) == after(*IDLE)
    assert after(*IDLE, ("slept", 1), ("slept", 1)) == after(*IDLE, ("slept", 1))
    assert after(*FOLDED, ("woke", WIDE)) == after(*FOLDED)


def possible(folding):
    """Return the reports that may be next: mostly those that are awaited."""
    awaited = [(name, each) for each in folding.pending for name in ("slept", "woke")]
    idle = [("became_idle", each) for each in FOLD.sleeping if each not in folding.idle]
    failures = [("failed_at", each, "why") for each in (*FOLD.sleeping, WIDE)]
    return [*(awaited + idle) * 6, *failures, ("slept", 1), ("woke", WIDE), ("woke", 3), ("end",)]


#: Reports that a history begins with, and choices among those that may be next.
histories = st.tuples(
    st.sampled_from([(), IDLE, ASLEEP, FOLDED]), st.lists(st.integers(0, 10**6), max_size=14)
)


def played(history):
    """Yield each report of a history, the fold before it, the fold after it and the orders."""
    first, choices = history
    folding = Folding(FOLD)
    for name, *arguments in first:
        before = folding
        folding, orders = getattr(before, name)(*arguments)
        yield (name, *arguments), before, folding, orders
    for choice in choices:
        some = possible(folding)
        name, *arguments = some[choice % len(some)]
        before = folding
        folding, orders = getattr(before, name)(*arguments)
        yield (name, *arguments), before, folding, orders


def last(history):
    """Return the fold after all of a history."""
    folding = Folding(FOLD)
    for _, _, reached, _ in played(history):
        folding = reached
    return folding


@given(histories)
def test_two_engines_never_have_one_gpu(history):
    """A worker that is ordered to wake has no other on its GPUs that is not asleep, lost or stopped."""
    awake = {1, 2}
    for (name, *arguments), before, _, orders in played(history):
        if name == "slept" and arguments[0] in before.pending:
            awake.discard(arguments[0])
        if name == "failed_at" and arguments[0] != WIDE:
            awake.discard(arguments[0])  # the node frees what is lost before it starts another
        awake |= {each.worker for each in orders if each.order == "wake"}
        assert not (WIDE in awake and awake & {1, 2})


@given(histories)
def test_any_fold_returns_once_its_workers_report(history):
    folding, _ = last(history).end()
    for _ in range(3):
        for worker in folding.pending:
            folding, _ = folding.slept(worker)
            folding, _ = folding.woke(worker)

    assert folding.stage is FoldStage.RETURNED
    assert set(folding.serving) == set(FOLD.sleeping) - set(folding.lost)


@given(histories)
def test_a_fold_goes_on_from_its_bytes(history):
    folding = last(history)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(folding), type=Folding) == folding
