"""The editor changes what it was asked for and nothing else, and says what models know from SWE-agent and OpenHands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rollout.agent.programs import editor_program
from rollout.agent.programs.editor_program import Editor, EditRefused


@pytest.fixture
def editor() -> Editor:
    return Editor()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "a.py"
    made.write_text("".join(f"line {number}\n" for number in range(1, 11)))
    return made


def run(editor: Editor, command: str, path: object, **arguments: Any) -> str:
    return editor.run({"command": command, "path": str(path), **arguments})


def refusal(editor: Editor, command: str, path: object, **arguments: Any) -> str:
    with pytest.raises(EditRefused) as caught:
        run(editor, command, path, **arguments)
    return str(caught.value)


def test_a_file_is_shown_with_its_line_numbers(editor: Editor, file: Path) -> None:
    shown = run(editor, "view", file)
    assert shown.startswith(f"Here's the result of running `cat -n` on {file}:\n     1\tline 1\n")
    ranged = run(editor, "view", file, view_range=[3, 4])
    assert ranged.split(":\n")[1] == "     3\tline 3\n     4\tline 4\n"
    assert "     9\tline 9\n    10\tline 10\n" in run(editor, "view", file, view_range=[9, -1])
    assert "has 11 lines" in run(editor, "view", file, view_range=[9, 99])


@pytest.mark.parametrize("wanted", [[0, 2], [5, 4], [1], "1-2", [1, True], [99, 100], [1.5, 2]])
def test_a_range_that_is_none_is_refused(editor: Editor, file: Path, wanted: Any) -> None:
    assert "Invalid `view_range`" in refusal(editor, "view", file, view_range=wanted)


def test_a_directory_is_shown_two_levels_deep_without_hidden_files(
    editor: Editor, tmp_path: Path
) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/b/deep.py").touch()
    (tmp_path / "a/x.py").touch()
    (tmp_path / ".git").mkdir()
    shown = run(editor, "view", tmp_path)
    listed = shown.partition("items:\n")[2].partition("\n\n")[0].split("\n")
    assert listed == [f"{tmp_path}/", f"{tmp_path}/a/", f"{tmp_path}/a/b/", f"{tmp_path}/a/x.py"]
    assert "1 hidden files/directories in this directory are excluded" in shown


def test_a_text_that_is_there_once_is_replaced(editor: Editor, file: Path) -> None:
    shown = run(editor, "str_replace", file, old_str="line 5\nline 6", new_str="five\nsix\nmore")
    assert file.read_text().split("\n")[3:8] == ["line 4", "five", "six", "more", "line 7"]
    assert f"The file {file} has been edited." in shown
    snippet = shown.partition("snippet of")[2]
    assert "     1\tline 1\n" in snippet
    assert "    11\tline 10\n" in snippet
    run(editor, "str_replace", file, old_str="line 1\n")
    assert file.read_text().startswith("line 2\n")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("line 99", "x", "did not appear verbatim"),
        ("line 1", "x", "Multiple occurrences of old_str `line 1` in lines [1, 10]"),
        ("line 2", "line 2", "must be different"),
        ("", "x", "`old_str` is empty"),
        (None, "x", "`old_str` is required"),
        ("line 2", 3, "`new_str` is a text"),
    ],
)
def test_any_other_replacement_changes_nothing(
    editor: Editor, file: Path, old: Any, new: Any, said: str
) -> None:
    before = file.read_bytes()
    assert said in refusal(editor, "str_replace", file, old_str=old, new_str=new)
    assert file.read_bytes() == before


def test_occurrences_that_overlap_are_more_than_one(editor: Editor, file: Path) -> None:
    file.write_text("aaa")
    assert "Multiple" in refusal(editor, "str_replace", file, old_str="aa", new_str="b")


def test_lines_are_inserted_after_a_line(editor: Editor, file: Path) -> None:
    run(editor, "insert", file, insert_line=0, new_str="first")
    run(editor, "insert", file, insert_line=11, new_str="last\n")
    lines = file.read_text().split("\n")
    assert (lines[0], lines[11:]) == ("first", ["last", ""])
    for wrong in (-1, 13, "2", True, None):
        assert "Invalid `insert_line`" in refusal(
            editor, "insert", file, insert_line=wrong, new_str="x"
        )


def test_a_file_is_created_and_never_overwritten(editor: Editor, tmp_path: Path) -> None:
    made = tmp_path / "new/deep/a.py"
    assert run(editor, "create", made, file_text="é\n") == f"File created successfully at: {made}"
    assert made.read_text() == "é\n"
    assert "File already exists at" in refusal(editor, "create", made, file_text="")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    run(editor, "create", tmp_path / "link", file_text="x")
    assert (tmp_path / "nowhere").read_text() == "x"


def test_edits_are_taken_back_one_after_the_other(editor: Editor, tmp_path: Path) -> None:
    made = tmp_path / "a"
    run(editor, "create", made, file_text="1\n")
    run(editor, "str_replace", made, old_str="1", new_str="2")
    run(editor, "insert", made, insert_line=1, new_str="3")
    assert "undone successfully" in run(editor, "undo_edit", made)
    assert made.read_text() == "2\n"
    run(editor, "undo_edit", made)
    assert made.read_text() == "1\n"
    assert "removed" in run(editor, "undo_edit", made)
    assert not made.exists()
    assert "No edit history found" in refusal(editor, "undo_edit", made)


def test_a_file_keeps_its_encoding_its_line_ends_and_its_mode(
    editor: Editor, tmp_path: Path
) -> None:
    made = tmp_path / "a.bat"
    made.write_bytes(b"\xef\xbb\xbfa\r\n\xff\tb\r\n")
    made.chmod(0o751)
    run(editor, "str_replace", made, old_str="a\n", new_str="c\nd\n")
    assert made.read_bytes() == b"\xef\xbb\xbfc\r\nd\r\n\xff\tb\r\n"
    assert made.stat().st_mode & 0o777 == 0o751
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.bat"]


def test_what_is_no_text_file_is_refused(
    editor: Editor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0")
    (tmp_path / "large").write_bytes(b"x" * 11)
    monkeypatch.setattr(editor_program, "MAX_FILE_BYTES", 10)
    assert "is no regular file" in refusal(editor, "view", tmp_path / "pipe")
    assert "is a binary file" in refusal(editor, "view", tmp_path / "binary")
    assert "is larger than 10 bytes" in refusal(editor, "view", tmp_path / "large")
    assert "No such file" in refusal(editor, "view", tmp_path / "missing")
    assert "only the `view` command" in refusal(
        editor, "str_replace", tmp_path, old_str="a", new_str="b"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": "view"}, "`path` is required"),
        ({"command": "delete", "path": "/a"}, "Unrecognized command 'delete'"),
        ({"command": ["view"], "path": "/a"}, "Unrecognized command"),
        ({"command": "view", "path": "a.py"}, "not an absolute path"),
        ({"command": "create", "path": "/a\0b", "file_text": ""}, "null byte"),
        ({"command": "create", "path": "/nowhere-at-all/a"}, "`file_text` is required"),
    ],
)
def test_calls_that_say_nothing_are_refused(
    editor: Editor, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(EditRefused) as caught:
        editor.run(arguments)
    assert said in str(caught.value)
