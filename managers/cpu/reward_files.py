"""Files of rewards: those that a command gets from the submitter, and the one that its reward is read from.

1. A file that a reward is read from counts only when the command has made it, so one of that name is deleted
   before the command starts. The report of ``runner: pytest`` has a name that no earlier process can know,
   which the command gets in ``PYTEST_ADDOPTS``, and is deleted once it was read.
2. Files of the submitter (``reward.files``) are mounted read-only where there is a sandbox. Their mount points are
   made as the owner of the environment, in place of links and directories that an agent left there, and deleted
   afterwards. Without a sandbox the files themselves are written and deleted.
3. No program of the environment may change files meanwhile: `prepare` follows no link, but replaces what it finds, and
   what it made is compared once the environment is sealed (`managers.cpu.environment.sealing`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import stat
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from domain.action import Outcome
from domain.errors import InvalidRequest, NotFound
from domain.ports import RewardFile, RunOrder, RunReport
from domain.ports.files import FileKind
from domain.rewards import JSON, JUNIT
from managers.common.reward_evidence import MAX_JSON_BYTES, MAX_JUNIT_BYTES
from managers.cpu.files.file_tree import FileTree, read_whole
from managers.cpu.files.place import NoQuota, TreePlace
from managers.cpu.files.resolution import PathScope
from managers.cpu.workspaces import acting_as, split_path

_PYTEST_OPTIONS: Final = "PYTEST_ADDOPTS"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FilesChanged(Exception):
    """A program of the environment has changed files of a reward before the environment was sealed."""


@dataclass
class RewardFiles:
    """The files of one run's reward. Paths are as in requests: relative, or below ``/workspace``."""

    #: The one that the reward is read from; empty: it is read from no file.
    path: str
    limit_bytes: int
    #: The node chooses its name, and the runner writes it there.
    is_ours: bool = False
    #: Path → text, of the submitter.
    given: dict[str, str] = field(default_factory=dict)
    #: What `prepare` has made.
    _made: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, order: RunOrder) -> RewardFiles | None:
        """Return the files of an order's reward; None when it has none."""
        rule = order.action.reward
        if rule is None or order.action.exec is None:
            return None
        path, limit = "", MAX_JUNIT_BYTES
        if rule.runner is not None:
            path = f".tangram-report-{secrets.token_hex(8)}.xml"
        elif rule.source == JSON:
            path, limit = rule.file or "", MAX_JSON_BYTES
        elif rule.source == JUNIT:
            path = rule.path or ""
        if not path and not rule.files:
            return None
        return cls(path, limit, rule.runner is not None, rule.files)

    def announced(self, order: RunOrder, home: str) -> RunOrder:
        """Return the order with a command that knows where its runner writes; ``home``: the workspace."""
        work = order.action.exec
        if not self.is_ours or work is None:
            return order
        option = shlex.quote(f"--junit-xml={home}/{self.path}")
        options = f"{work.env.get(_PYTEST_OPTIONS, '')} {option}".strip()
        work = replace(work, env={**work.env, _PYTEST_OPTIONS: options})
        return replace(order, action=replace(order.action, exec=work))

    async def around(
        self,
        command: Callable[[], Awaitable[RunReport]],
        workspace: Path,
        uid: int | None = None,
        *,
        mounted: bool = False,
        sealed: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> RunReport:
        """Run a command with these files; return its report with the file that the reward is read from.

        ``sealed`` keeps programs of the environment from changing files. Raises FilesChanged when one did so before;
        then the command was not started.
        """
        try:
            await asyncio.to_thread(self.prepare, workspace, uid, mounted=mounted)
            async with sealed():
                await asyncio.to_thread(self.check, workspace, uid, mounted=mounted)
                report = await command()
                return await asyncio.to_thread(self.collected, report, workspace, uid)
        finally:
            await asyncio.to_thread(self.clear, workspace, uid)

    def prepare(self, workspace: Path, uid: int | None = None, *, mounted: bool = False) -> None:
        """Delete an earlier file to read, and place those of the submitter, as ``uid``. Blocks.

        ``mounted``: make mount points, not the files. Raises OSError, InvalidRequest.
        """
        self._remove(self.path, workspace, uid)
        if self._is_written(workspace, uid):  # in a directory that its owner may not change
            _place(workspace, self.path, None, uid)
            self._remove(self.path, workspace, uid)
        for path, text in self.given.items():
            content = None if mounted else text.encode(errors="replace")
            self._made += _place(workspace, path, content, uid)

    def check(self, workspace: Path, uid: int | None = None, *, mounted: bool = False) -> None:
        """Raise FilesChanged unless all is as `prepare` has left it. Blocks."""
        if self._is_written(workspace, uid):
            raise FilesChanged(f"{self.path!r} was written again before the command")
        tree = _tree(workspace, uid)
        for path, text in self.given.items():
            content = None if mounted else text.encode(errors="replace")
            if not _is_placed(tree, path, content):
                raise FilesChanged(f"{path!r} was replaced before the command")

    def collected(self, report: RunReport, workspace: Path, uid: int | None = None) -> RunReport:
        """Return ``report`` with the file of a completed run, read as ``uid``. Blocks."""
        if self.path and report.outcome is Outcome.COMPLETED:
            report = replace(report, reward_file=self._read(workspace, uid))
        return report

    def clear(self, workspace: Path, uid: int | None = None) -> None:
        """Delete what `prepare` has made, and the report of our name. Blocks."""
        if self.is_ours:
            self._remove(self.path, workspace, uid)
        while self._made:
            self._remove(self._made.pop(), workspace, uid)

    def _is_written(self, workspace: Path, uid: int | None) -> bool:
        """Say whether there is a file that would count as evidence."""
        if not self.path:
            return False
        try:
            facts = _tree(workspace, uid).stat(self.path, follow=False)
        except (NotFound, InvalidRequest):  # a link on the way is no evidence
            return False
        return facts.kind is FileKind.FILE

    def _remove(self, path: str, workspace: Path, uid: int | None) -> None:
        with contextlib.suppress(InvalidRequest, OSError):
            _tree(workspace, uid).remove(path)

    def _read(self, workspace: Path, uid: int | None) -> RewardFile:
        try:
            return RewardFile(read_whole(_tree(workspace, uid), self.path, self.limit_bytes))
        except NotFound:
            if self.is_ours:
                return RewardFile(
                    None, "the runner left no report, so no test ran: is it installed?"
                )
            return RewardFile(None, f"the command did not write {self.path!r}")
        except InvalidRequest as error:
            return RewardFile(None, str(error))
        except OSError as error:
            return RewardFile(None, f"{self.path!r} cannot be read: {error.strerror}")


def _tree(workspace: Path, uid: int | None) -> FileTree:
    """Return the files of a workspace; no link leads to a reward."""
    return FileTree(TreePlace.folder(workspace, uid, NoQuota(), PathScope.STRICT))


def _is_placed(tree: FileTree, path: str, content: bytes | None) -> bool:
    """Say whether a file is there; ``content`` None: any."""
    try:
        is_file = tree.stat(path, follow=False).kind is FileKind.FILE
        return is_file and (content is None or read_whole(tree, path, len(content)) == content)
    except (NotFound, InvalidRequest):
        return False


def _place(workspace: Path, path: str, content: bytes | None, uid: int | None = None) -> list[str]:
    """Write a file in place of anything that is there; without ``content``, make sure that a file is there.

    Links and files on the way become directories; a directory in its place is moved aside. No process may run
    in the workspace. Acts as ``uid`` where one is given. Returns the paths that it made, parents first.
    """
    *parents, name = split_path(path)
    made: list[str] = []
    directory = os.open(workspace, _DIRECTORY)
    try:
        with acting_as(uid):
            for at, part in enumerate(parents, 1):
                if _made_directory(directory, part):
                    made.append("/".join(parents[:at]))
                step = os.open(part, _DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = step
            if _made_file(directory, name, content):
                made.append("/".join((*parents, name)))
    finally:
        os.close(directory)
    return made


def _mode(name: str, directory: int) -> int:
    """Return the mode of an entry; 0: there is none."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0


def _made_directory(parent: int, name: str) -> bool:
    """Make sure that ``name`` is a directory that its owner may use; return whether it was made."""
    mode = _mode(name, parent)
    if stat.S_ISDIR(mode):
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(name, stat.S_IMODE(mode) | stat.S_IRWXU, dir_fd=parent)
        return False
    if mode:
        os.unlink(name, dir_fd=parent)
    os.mkdir(name, 0o755, dir_fd=parent)
    return True


def _made_file(parent: int, name: str, content: bytes | None) -> bool:
    """Make the file, or with ``content`` None only if there is none; return whether it was made."""
    mode = _mode(name, parent)
    if content is None and stat.S_ISREG(mode):
        return False
    if stat.S_ISDIR(mode):
        aside = f".{name[:200]}.{secrets.token_hex(4)}"
        os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
    elif mode:
        os.unlink(name, dir_fd=parent)
    with os.fdopen(os.open(name, _CREATE, 0o644, dir_fd=parent), "wb") as file:
        file.write(content or b"")
    return True
