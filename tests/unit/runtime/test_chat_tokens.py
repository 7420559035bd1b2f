"""Tokens of agents serve their trajectory, and cannot be made by what knows one."""

from __future__ import annotations

import pytest

from scheduler.runtime.rollouts.chat_tokens import ChatTokens, is_chat_token

TOKENS = ChatTokens(b"secret")


def test_a_token_names_its_trajectory():
    token = TOKENS.token("nightly", "rol_1-run")

    assert is_chat_token(token)
    assert TOKENS.holder(token) == ("nightly", "rol_1-run")
    assert ChatTokens(b"other").holder(token) is None


@pytest.mark.parametrize("change", ["", "x", "."])
def test_another_text_is_no_token(change: str):
    text, _, mac = TOKENS.token("nightly", "rol_1-run").partition(".")
    other = TOKENS.token("nightly", "rol_2-run").partition(".")[0]

    assert TOKENS.holder(f"{other}.{mac}") is None
    assert TOKENS.holder(f"{text}{change}.{mac[:-1]}{change}") is None
    assert TOKENS.holder(f"tgm_{mac}{change}") is None
    assert not is_chat_token(f"tgm_{mac}")
