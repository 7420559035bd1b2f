"""Samples of traces of other systems.

They follow the published schemas that `simulator.foreign` names; their figures are made up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MOONCAKE = {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
BAILIAN = {
    "chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521,
    "output_length": 132, "type": "text", "turn": 2, "hash_ids": [1089],
}  # fmt: skip
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
STEP = {
    "action": "pytest -q\n", "observation": "1 passed", "response": "Let me run the tests.",
    "thought": "Let me run the tests.", "execution_time": 2.5, "state": {"open_file": "n/a"},
}  # fmt: skip
INFO = {"exit_status": "submitted", "model_stats": {"tokens_sent": 9000, "tokens_received": 120}}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "grep -rn x ."}}\n</tool_call>'
VERL = {"input": "user\nFix it.", "output": "Done.", "gts": None, "score": 1.0, "step": 12}


def a_file(folder: Path, name: str, *rows: Any) -> Path:
    path = folder / name
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return path


def a_trajectory(folder: Path, *steps: dict[str, Any], name: str = "a__b-1.traj") -> Path:
    path = folder / name
    path.write_text(json.dumps({"trajectory": steps, "history": [], "info": INFO}, indent=2))
    return path


def changed(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**body, **changes}.items() if value is not ...}
