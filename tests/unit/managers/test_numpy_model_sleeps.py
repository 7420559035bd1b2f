"""The example's model drops its weights when it is put to sleep, and answers as before once awake."""

from __future__ import annotations

import pytest

from examples.gpu_service.numpy_model import Model


def test_it_answers_as_before_when_it_was_woken():
    model = Model(1, seed=3, keeps_copy=True)
    before = model.score("a text")

    assert model.sleep()
    assert not model.awake
    with pytest.raises(RuntimeError, match="sleeps"):
        model.score("a text")
    assert model.wake()
    assert model.score("a text") == before


def test_without_a_copy_it_is_not_put_to_sleep():
    model = Model(1, seed=3)

    assert not model.sleep()
    assert model.awake


def test_a_model_that_is_awake_stays_awake():
    model = Model(1, seed=3, keeps_copy=True)

    assert model.wake()
    assert model.sleep()
    assert model.sleep()
    assert model.wake()
