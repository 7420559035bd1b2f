"""The text of a command says what runs, and hides what must not be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.command_text import MASK, command_block, command_text, is_secret_name, masked, variables


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("curl -H 'Authorization: Bearer abcdef123456' x", f"curl -H 'Authorization: Bearer {MASK}' x"),
        ("deploy --api-key abc123 --dry-run", f"deploy --api-key {MASK} --dry-run"),
        ("GITHUB_TOKEN=abc make", f"GITHUB_TOKEN={MASK} make"),
        ('{"password": "hunter2", "user": "a"}', f'{{"password": "{MASK}", "user": "a"}}'),
        ("git clone https://me:s3cret@host/r.git", f"git clone https://me:{MASK}@host/r.git"),
        ("echo ghp_abcdefgh12345678", f"echo ghp_{MASK}"),
        ("echo sk-proj-abcdefgh12345678", f"echo sk-proj-{MASK}"),
        ("echo hf_abcdefgh12345678", f"echo hf_{MASK}"),
        ("aws AKIAABCDEFGHIJKLMNOP", f"aws AKIA{MASK}"),
        ("x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", f"x eyJ{MASK}"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END", f"-----BEGIN RSA PRIVATE KEY-----{MASK}-----END"),
        ("pytest -q tests/test_tokens.py", "pytest -q tests/test_tokens.py"),
        ("python train.py --max-tokens=4096", "python train.py --max-tokens=4096"),
        ("make -j8 test", "make -j8 test"),
    ],
)  # fmt: skip
def test_secrets_of_known_forms_are_masked_and_ordinary_words_are_not(
    text: str, shown: str
) -> None:
    assert masked(text) == shown


@given(
    st.sampled_from(["TOKEN=", "--password ", "Authorization: Bearer ", "api_key: ", "ghp_"]),
    st.from_regex(r"[A-Za-z0-9]{12,40}", fullmatch=True),
    st.text(st.characters(codec="ascii", exclude_characters="'\""), max_size=20),
)
def test_no_secret_is_left_in_any_text(prefix: str, secret: str, before: str) -> None:
    assert secret not in masked(f"{before} {prefix}{secret} end")


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ({"exec": {"command": ["pytest", "-k", "a b"]}}, "pytest -k 'a b'"),
        ({"exec": {"command": ["sh", "-c", "cd /tmp &&\n  make"]}}, "cd /tmp && make"),
        ({"call": {"target": "api:search", "method": "GET", "path": "/q?token=abc"}}, f"GET api:search/q?token={MASK}"),
        ({"kind": "lease", "cost": {"cpu": [1, 2]}}, "lease of cpu [1, 2]"),
        ({"exec": {"command": None, "session": "s1"}}, "continue session s1"),
        (None, ""),
    ],
)  # fmt: skip
def test_what_an_action_runs_is_one_line(spec: dict[str, object] | None, shown: str) -> None:
    assert command_text(spec) == shown


def test_long_texts_say_how_much_is_left_out() -> None:
    spec = {"exec": {"command": ["echo", "x" * 5000]}}

    assert len(command_text(spec)) == 120
    assert command_block(spec).endswith("x\n… 909 characters are left out")


def test_variables_of_secret_names_are_masked() -> None:
    spec = {"exec": {"env": {"HF_TOKEN": "abc", "MODE": "fast", "URL": "http://a:b@c"}}}

    assert list(variables(spec)) == [
        ("HF_TOKEN", MASK),
        ("MODE", "fast"),
        ("URL", f"http://a:{MASK}@c"),
    ]
    assert is_secret_name("x-api-key")
    assert not is_secret_name("monkey")
