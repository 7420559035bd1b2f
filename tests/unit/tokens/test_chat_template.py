"""Chat templates run in a sandbox, with the functions that published templates use."""

from __future__ import annotations

import pytest

from rollout.tokens.chat_template import ChatTemplate, TemplateRefused
from tests.chat_models import AT

ASKED = [{"role": "user", "content": "2 < 3 & é"}]


def rendered(source: str, **options: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(ASKED, at=AT, options=options)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>2 < 3 & é"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "2 < 3 & é"}'),
        ("{{ messages[0] | tojson(indent=1) }}", '{\n "role": "user",\n "content": "2 < 3 & é"\n}'),
        ("{{ strftime_now('%Y-%m-%d') }}", "2026-11-23"),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% if tools %}t{% endif %}{% if documents is none %}d{% endif %}", "d"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
    ],
)  # fmt: skip
def test_a_template_has_what_published_ones_use(source: str, text: str):
    assert rendered(source) == text


def test_options_are_variables_and_cannot_replace_the_messages():
    assert rendered("{{ level }}{{ messages | length }}", level=3, messages=[]) == "31"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles take turns') }}", "roles take turns"),
        ("{{ messages.__class__.__mro__ }}", "SecurityError"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ messages[0].content.nothing.more }}", "UndefinedError"),
        ("{% for x in range(999999999) %}x{% endfor %}", "OverflowError"),
    ],
)
def test_a_template_that_reaches_out_or_refuses_is_an_error_of_the_request(source: str, said: str):
    with pytest.raises(TemplateRefused, match=said):
        rendered(source)


def test_a_template_that_is_no_jinja_says_so():
    with pytest.raises(TemplateRefused, match="no Jinja2"):
        ChatTemplate("{% if %}")
