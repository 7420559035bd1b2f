"""Secrets are sealed under the key of the installation, and follow it when it is rotated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_web.lib.sealing import PREFIX, Unsealable, reseal, seal, unseal

SECRET = "whsec_" + "a" * 44


@given(st.text(max_size=200))
def test_a_sealed_secret_is_read_again(text: str) -> None:
    sealed = seal(text, "test")
    assert unseal(sealed, "test") == text


def test_equal_secrets_look_different_and_show_nothing() -> None:
    first, second = seal(SECRET, "test"), seal(SECRET, "test")
    assert first != second
    assert first.startswith(PREFIX)
    assert SECRET not in first


def test_another_key_another_purpose_and_a_changed_text_open_nothing(settings: Any) -> None:
    sealed = seal(SECRET, "test")
    with pytest.raises(Unsealable):
        unseal(sealed, "other")
    with pytest.raises(Unsealable):
        unseal(sealed[:-6] + ("AAAAAA" if sealed[-6:] != "AAAAAA" else "BBBBBB"), "test")
    settings.SECRET_KEY = "another key"
    with pytest.raises(Unsealable):
        unseal(sealed, "test")


def test_a_key_is_rotated_without_losing_what_it_sealed(settings: Any) -> None:
    sealed = seal(SECRET, "test")
    assert reseal(sealed, "test") == sealed

    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the next key", [settings.SECRET_KEY]
    assert unseal(sealed, "test") == SECRET
    again = reseal(sealed, "test")

    settings.SECRET_KEY_FALLBACKS = []
    assert unseal(again, "test") == SECRET
    with pytest.raises(Unsealable):
        unseal(sealed, "test")


def test_a_secret_from_before_is_taken_as_it_is_and_sealed() -> None:
    assert unseal(SECRET, "test") == SECRET
    assert unseal(reseal(SECRET, "test"), "test") == SECRET
