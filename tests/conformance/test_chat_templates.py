"""Prompts equal those of transformers, character by character and token by token."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest

from examples.rollouts.scripted_llm import TOKENIZER
from rollout.tokens.chat_template import ChatTemplate, TemplateRefused
from tests.chat_models import TEMPLATES, tokenizer

pytestmark = pytest.mark.slow

#: The time that a template reads, of both: a date may change between two readings of a clock.
AT = datetime(2019, 12, 31, 23, 59, tzinfo=UTC)
TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
#: Runs where transformers is: reads cases, writes text and ids, or the word refused.
PROGRAM = """
import datetime, json, sys
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils
file, at, cases = json.load(sys.stdin)
class Clock:
    now = staticmethod(lambda: datetime.datetime.fromisoformat(at))
chat_template_utils.datetime = Clock
known = PreTrainedTokenizerFast(tokenizer_file=file, bos_token="<|endoftext|>", eos_token="<|im_end|>")
found = []
for case in cases:
    try:
        text = known.apply_chat_template(
            case["messages"], tools=case["tools"], chat_template=case["template"], tokenize=False,
            add_generation_prompt=case["generation"], **case["options"],
        )
    except Exception as error:
        found.append([type(error).__name__, None])
    else:
        found.append([text, known(text, add_special_tokens=False)["input_ids"]])
json.dump(found, sys.stdout)
"""

SYSTEM = {"role": "system", "content": "  Be brief.\n"}
ASKED = {"role": "user", "content": "Größe <b>&amp;</b> {{ x }} 数据 🙂\n\n\tdone  "}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 4."}
FUNCTION = {"name": "bash", "arguments": {"command": "ls 'ü' | wc -l", "seconds": 1.5}}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": FUNCTION}],
}
RESULT = {"role": "tool", "content": '{"total": 0}\n'}
CHATS: dict[str, list[dict[str, Any]]] = {
    "question": [ASKED],
    "system": [SYSTEM, ASKED],
    "answered": [SYSTEM, ASKED, ANSWER],
    "asked again": [SYSTEM, ASKED, ANSWER, ASKED],
    "asked twice": [ASKED, ASKED],
    "called": [ASKED, CALLED, RESULT, RESULT, ANSWER, ASKED],
    "empty": [{"role": "user", "content": ""}],
}  # fmt: skip
TOOL = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "é": [1]}},
}


def cases() -> list[dict[str, Any]]:
    """Return all combinations."""
    own = tokenizer().chat_template
    return [
        {
            "template": template,
            "messages": messages,
            "tools": tools,
            "generation": generation,
            "options": options,
        }
        for template in [own, *TEMPLATES.values()]
        for messages in CHATS.values()
        for tools in (None, [TOOL])
        for generation in (False, True)
        for options in ({}, {"enable_thinking": False})
    ]


def of_transformers(given: list[dict[str, Any]], libraries: Path) -> list[tuple[str, Any]]:
    """Return text and ids of each case, by transformers."""
    there = Path(sys.prefix) / "transformers"
    assert there.is_dir(), "./tangram test installs it"
    for pattern in ("jinja2*", "markupsafe*"):  # transformers names them in an extra
        for path in Path(jinja2.__file__).parents[1].glob(pattern):
            (libraries / path.name).symlink_to(path)
    ran = subprocess.run(
        ["/usr/bin/python3", "-c", PROGRAM],
        input=json.dumps([str(TOKENIZER / "tokenizer.json"), AT.isoformat(), given]),
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{there}:{libraries}", "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [(text, ids) for text, ids in json.loads(ran.stdout)]


def of_ours(case: dict[str, Any]) -> tuple[str, Any]:
    try:
        text = ChatTemplate(case["template"], TOKENS).render(
            case["messages"],
            at=AT,
            tools=case["tools"],
            generation=case["generation"],
            options=case["options"],
        )
    except TemplateRefused:
        return "refused", None
    return text, tokenizer().encode(text)


def test_texts_and_ids_are_those_of_transformers(tmp_path: Path) -> None:
    given = cases()
    theirs = of_transformers(given, tmp_path)

    refused = 0
    for case, (text, ids) in zip(given, theirs, strict=True):
        ours = of_ours(case)
        if ids is None:
            refused += 1
            assert text == "TemplateError", case
            assert ours == ("refused", None), case
        else:
            assert ours == (text, ids), case
    assert 0 < refused < len(given) / 2
