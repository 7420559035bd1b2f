"""Editor of files by exact texts, inside the environment: view, create, str_replace, insert, undo_edit.

The commands, their arguments and answers are those that models know from SWE-agent and OpenHands. Standard library only.

Rules
1. A text that is replaced is in the file exactly once; else nothing is changed, and the answer says why.
2. A file keeps its encoding, its line ends and its mode. It is replaced as a whole: no reader sees a half of it.
3. `undo_edit` takes back the last edit that was made here, one after the other.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from typing import Any

MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_ENTRIES = 1000
#: Lines around an edit that its answer shows.
SNIPPET_LINES = 4
#: Edits of one file that can be taken back.
MAX_UNDO = 20


class EditRefused(Exception):
    """Nothing was changed; the text says why."""


class TextFile:
    """The content of a file as text, and how it is stored."""

    def __init__(self, data: bytes) -> None:
        self.crlf = b"\r\n" in data and data.count(b"\n") == data.count(b"\r\n")
        # Bytes that are no UTF-8 are written again as they were.
        text = data.decode("utf-8", "surrogateescape")
        self.text = text.replace("\r\n", "\n") if self.crlf else text

    def encoded(self, text: str) -> bytes:
        """Return a changed text as it is stored."""
        if self.crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        return text.encode("utf-8", "surrogateescape")


class Editor:
    """Edits files. Keeps what they were."""

    def __init__(self) -> None:
        #: Path → earlier contents, None where the file was not there.
        self._before: dict[str, list[bytes | None]] = {}

    def run(self, arguments: dict[str, Any]) -> str:
        """Do a command and return its answer. Raises EditRefused."""
        command, path = arguments.get("command"), arguments.get("path")
        if not isinstance(path, str) or not path:
            raise EditRefused("Parameter `path` is required.")
        commands = {
            "view": self._view,
            "create": self._create,
            "str_replace": self._replace,
            "insert": self._insert,
            "undo_edit": self._undo,
        }
        if not isinstance(command, str) or command not in commands:
            raise EditRefused(
                f"Unrecognized command {command!r}. The allowed commands are: {', '.join(commands)}."
            )
        if not path.startswith("/"):
            absolute = os.path.join(os.getcwd(), path)
            raise EditRefused(
                f"The path {path} is not an absolute path, it should start with `/`. Maybe you meant {absolute}?"
            )
        try:
            return commands[command](os.path.realpath(path), arguments)
        except (OSError, ValueError) as error:
            raise EditRefused(f"{path}: {getattr(error, 'strerror', None) or error}") from None

    def _view(self, path: str, arguments: dict[str, Any]) -> str:
        wanted = arguments.get("view_range")
        if os.path.isdir(path):
            if wanted:
                raise EditRefused("The `view_range` parameter is not allowed for a directory.")
            return listing(path)
        lines = _read(path).text.split("\n")
        first, last, note = 1, len(lines), ""
        if wanted:
            first, last, note = _range_of(wanted, len(lines))
        header = f"Here's the result of running `cat -n` on {path}:\n"
        return note + header + numbered(lines[first - 1 : last], first)

    def _create(self, path: str, arguments: dict[str, Any]) -> str:
        text = _text(arguments, "file_text", "create")
        if os.path.lexists(path):
            raise EditRefused(
                f"File already exists at: {path}. Cannot overwrite files using command `create`."
            )
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write(path, text.encode("utf-8", "surrogateescape"))
        self._keep(path, None)
        return f"File created successfully at: {path}"

    def _replace(self, path: str, arguments: dict[str, Any]) -> str:
        old = _text(arguments, "old_str", "str_replace")
        new = arguments.get("new_str")
        if new is None:
            new = ""
        if not isinstance(new, str):
            raise EditRefused("Parameter `new_str` is a text.")
        if not old:
            raise EditRefused("No replacement was performed. `old_str` is empty.")
        if old == new:
            raise EditRefused(
                "No replacement was performed. `new_str` and `old_str` must be different."
            )
        data = read_bytes(path)
        file = TextFile(data)
        at = file.text.find(old)
        if at < 0:
            raise EditRefused(
                f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}."
            )
        if file.text.find(old, at + 1) >= 0:
            lines = ", ".join(map(str, _lines_of(file.text, old)))
            raise EditRefused(
                f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines [{lines}]."
                " Please ensure it is unique."
            )
        changed = file.text[:at] + new + file.text[at + len(old) :]
        self._store(path, data, file.encoded(changed))
        return _edited(path, changed, file.text.count("\n", 0, at) + 1, new.count("\n"))

    def _insert(self, path: str, arguments: dict[str, Any]) -> str:
        new, line = _text(arguments, "new_str", "insert"), arguments.get("insert_line")
        data = read_bytes(path)
        file = TextFile(data)
        # A last line without its end is a line; the nothing behind a last line's end is none.
        lines = file.text.split("\n")
        count = len(lines) - (lines[-1] == "")
        if isinstance(line, bool) or not isinstance(line, int) or not 0 <= line <= count:
            raise EditRefused(
                f"Invalid `insert_line` parameter: {line!r}. It should be within the range of lines of the file:"
                f" [0, {count}]"
            )
        added = new[:-1] if new.endswith("\n") else new
        changed = "\n".join([*lines[:line], *added.split("\n"), *lines[line:]])
        self._store(path, data, file.encoded(changed))
        return _edited(path, changed, line + 1, added.count("\n"))

    def _undo(self, path: str, arguments: dict[str, Any]) -> str:
        if not self._before.get(path):
            raise EditRefused(f"No edit history found for {path}.")
        before = self._before[path].pop()
        if before is None:
            os.unlink(path)
            return f"Last edit to {path} undone successfully: it had created the file, which is removed."
        write(path, before)
        shown = numbered(TextFile(before).text.split("\n"), 1)
        return f"Last edit to {path} undone successfully. Here's the result of running `cat -n` on {path}:\n{shown}"

    def _store(self, path: str, before: bytes, after: bytes) -> None:
        write(path, after)
        self._keep(path, before)

    def _keep(self, path: str, before: bytes | None) -> None:
        kept = self._before.setdefault(path, [])
        kept.append(before)
        del kept[:-MAX_UNDO]


def numbered(lines: list[str], first: int) -> str:
    """Return lines with their numbers, as ``cat -n`` prints them."""
    return "".join(f"{first + number:6}\t{line}\n" for number, line in enumerate(lines))


def listing(path: str) -> str:
    """Return what is in a directory and in its directories, without hidden files."""
    found: list[str] = []
    hidden = 0
    for folder, folders, files in os.walk(path):
        depth = 0 if folder == path else os.path.relpath(folder, path).count("/") + 1
        if folder == path:
            hidden = sum(each.startswith(".") for each in [*folders, *files])
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        found += [os.path.join(folder, each) + "/" for each in folders]
        found += [os.path.join(folder, each) for each in files if not each.startswith(".")]
        if depth or len(found) > MAX_ENTRIES:
            folders.clear()
    shown = "\n".join(sorted(found)[:MAX_ENTRIES])
    text = f"Here's the files and directories up to 2 levels deep in {path}, excluding hidden items:\n{path}/\n{shown}"
    if len(found) > MAX_ENTRIES:
        text += f"\n\n{len(found) - MAX_ENTRIES} or more entries are left out."
    if hidden:
        text += f"\n\n{hidden} hidden files/directories in this directory are excluded. You can use 'ls -la {path}' to see them."
    return text


def read_bytes(path: str) -> bytes:
    """Return the content of a text file. Raises EditRefused, OSError."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise EditRefused(
            f"The path {path} is a directory and only the `view` command can be used on directories."
        )
    if not stat.S_ISREG(mode):
        raise EditRefused(f"The path {path} is no regular file.")
    with open(path, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise EditRefused(f"{path} is larger than {MAX_FILE_BYTES} bytes: use the shell.")
    if b"\0" in data:
        raise EditRefused(f"{path} is a binary file: it has no text to show or to edit.")
    return data


def write(path: str, data: bytes) -> None:
    """Replace a file at once, with the mode that it has. Raises OSError."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    else:
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "it may not be written", path)
    try:
        number, beside = tempfile.mkstemp(prefix=".edit-", dir=os.path.dirname(path))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        with open(path, "wb") as file:  # its directory takes no new file
            file.write(data)
        return
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.chmod(beside, mode)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _read(path: str) -> TextFile:
    return TextFile(read_bytes(path))


def _text(arguments: dict[str, Any], name: str, command: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise EditRefused(f"Parameter `{name}` is required for command: {command}.")
    return value


def _range_of(wanted: Any, count: int) -> tuple[int, int, str]:
    """Return the first and the last line to show, and a note. Raises EditRefused."""
    if (
        not isinstance(wanted, list)
        or len(wanted) != 2
        or any(isinstance(each, bool) or not isinstance(each, int) for each in wanted)
    ):
        raise EditRefused("Invalid `view_range`. It should be a list of two integers.")
    first, last = wanted
    if not 1 <= first <= count:
        raise EditRefused(
            f"Invalid `view_range`: {wanted}. Its first element `{first}` should be within the range of lines of"
            f" the file: [1, {count}]."
        )
    if last == -1:
        return first, count, ""
    if last < first:
        raise EditRefused(
            f"Invalid `view_range`: {wanted}. Its second element `{last}` should be greater than or equal to the"
            f" first element `{first}`."
        )
    note = (
        f"The file has {count} lines; they are shown up to the last one.\n" if last > count else ""
    )
    return first, min(last, count), note


def _lines_of(text: str, old: str) -> list[int]:
    found: list[int] = []
    at = text.find(old)
    while at >= 0 and len(found) < 20:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + 1)
    return found


def _edited(path: str, text: str, line: int, more: int) -> str:
    """Return the answer to an edit of ``more`` + 1 lines from ``line`` on."""
    lines = text.split("\n")
    first = max(1, line - SNIPPET_LINES)
    shown = numbered(lines[first - 1 : line + more + SNIPPET_LINES], first)
    return (
        f"The file {path} has been edited. Here's the result of running `cat -n` on a snippet of {path}:\n{shown}"
        "Review the changes and make sure they are as expected. Edit the file again if necessary."
    )
