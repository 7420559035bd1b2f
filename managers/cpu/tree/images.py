"""Images of a node: root file systems, stored once by the digest of their content.

    images/DIGEST/tree         the files, with the owners of the image (of the worker, where that is not root);
                               where Apptainer built it, the SIF file
    images/DIGEST/image.json   what the image says about its use
    images/names/NAME.json     digest of a name; its time of change is when it was used last

An image is never changed: a name that is imported again names another digest, and environments that have
begun keep theirs. The folder is private to the worker, as it may hold programs with set-user-id.
Names belong to a node, not to the scheduler: what a node has is a fact about the node, and an action that
finds its image missing says how to import it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Final

import msgspec

from domain.errors import Conflict, InvalidRequest, NotFound, Unavailable
from managers.cpu.tree import unpack
from managers.cpu.tree.layers import IMAGES

_FACTS: Final = "image.json"
_NAMES: Final = "names"
_UPLOADS: Final = "uploads"
_DRAFT: Final = "draft."
#: As container engines write it: with a registry, a tag, a digest.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")


class ImageFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an image says about its use, and its size."""

    digest: str = ""
    #: Variables of every command.
    env: dict[str, str] = {}
    #: Home directory of uid 0.
    home: str = "/root"
    #: Disk that its files use.
    bytes: int = 0
    files: int = 0
    #: Built for one environment: it has no name, and is deleted with the last record that is upon it.
    alone: bool = False


class ImageName(msgspec.Struct, frozen=True, omit_defaults=True):
    """A name and the image that it names now."""

    name: str
    digest: str
    #: Seconds since 1970; known when names are listed.
    used_at: float = 0.0


class ImageMissing(NotFound):
    """An image that a request names is not on this node; the message has the cure."""


def check_name(name: str) -> None:
    """Raise InvalidRequest for a name that no image can have."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} is no name of an image: use letters, digits and . _ - : / @", pointer="/name"
        )


def delete_tree(path: Path) -> None:
    """Delete a directory that no command can reach; a missing one is ignored. Blocks."""

    def permit(_call: object, name: str, _error: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(name), 0o700)
            os.chmod(name, 0o700)
            if os.path.isdir(name):
                shutil.rmtree(name, ignore_errors=True)
            else:
                os.unlink(name)

    shutil.rmtree(path, onerror=permit)


class ImageStore:
    """The images below one state directory; its methods block and may be called from any thread."""

    def __init__(self, state: Path, most_bytes: int = 64 * 2**30) -> None:
        self._folder = state / IMAGES
        #: Limits of one image.
        self.most_bytes, self.most_files = most_bytes, 5_000_000
        self._changing = threading.Lock()
        self._facts: dict[str, ImageFacts] = {}

    def open(self) -> None:
        """Make the folder."""
        (self._folder / _NAMES).mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(self._folder, 0o700)

    def find(self, name: str) -> ImageFacts:
        """Return the image of a name, and record its use. Raises ImageMissing."""
        known = self._read_name(name)
        if known is None:
            raise ImageMissing(
                f"image {name!r} is not on this node: import it with"
                f" `tangram image import {name} FILE` (a tar of a root file system, `docker save`, or a folder)"
            )
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path_of(name))
        return self.facts(known.digest)

    def facts(self, digest: str) -> ImageFacts:
        """Return what an image says. Raises ImageMissing when it was deleted."""
        facts = self._facts.get(digest)
        if facts is None:
            try:
                content = (self._folder / digest / _FACTS).read_bytes()
            except FileNotFoundError:
                raise ImageMissing(
                    f"the image {digest} of this environment is not on this node"
                ) from None
            facts = self._facts[digest] = msgspec.json.decode(content, type=ImageFacts)
        return facts

    def knows(self, name: str) -> bool:
        """Return whether an image of that name is here."""
        return self._read_name(name) is not None

    def tree_of(self, name: str) -> tuple[ImageFacts, Path]:
        """Return an image and its folder. Raises ImageMissing, InvalidRequest for one that is a SIF file."""
        facts = self.find(name)
        tree = self._folder / facts.digest / "tree"
        if not tree.is_dir():
            raise InvalidRequest(
                f"image {name!r} is a file that Apptainer built: nodes share such files by TANGRAM_APPTAINER_CACHE"
            )
        return facts, tree

    def names(self) -> list[ImageName]:
        """Return all names, in order."""
        found = []
        for path in (self._folder / _NAMES).glob("*.json"):
            with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
                name = msgspec.json.decode(path.read_bytes(), type=ImageName)
                found.append(ImageName(name.name, name.digest, path.stat().st_mtime))
        return sorted(found, key=lambda each: each.name)

    def receive(self) -> Path:
        """Return a path for an archive that is being uploaded; `import_archive` deletes it."""
        folder = self._folder / _UPLOADS
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / secrets.token_hex(8)

    def import_archive(self, name: str, archive: Path) -> ImageFacts:
        """Unpack an archive as an image, give it a name, and delete the archive.

        Raises InvalidRequest for a bad archive.
        """
        check_name(name)
        draft = self._folder / f"{_DRAFT}{secrets.token_hex(8)}"
        (draft / "tree").mkdir(parents=True)
        try:
            facts = self._unpacked(archive, draft / "tree")
            (draft / _FACTS).write_bytes(msgspec.json.encode(facts))
            with self._changing:
                if not (self._folder / facts.digest).exists():
                    draft.rename(self._folder / facts.digest)
                self._write_name(ImageName(name, facts.digest))
            return facts
        finally:
            delete_tree(draft)
            archive.unlink(missing_ok=True)

    def has(self, digest: str) -> bool:
        """Return whether an image is here, with or without a name."""
        return (self._folder / digest).exists()

    def adopt(self, name: str, file: Path, facts: ImageFacts) -> None:
        """Store a file that is a whole image (SIF) under a name; ``facts.digest`` tells it from others.

        The image is another link to the file, or a symbolic one on another disk. One that is ``alone`` does not need
        the file, and gets no name. Raises OSError.
        """
        check_name(name)
        draft = self._folder / f"{_DRAFT}{secrets.token_hex(8)}"
        draft.mkdir()
        try:
            try:
                os.link(file, draft / "tree")
            except OSError:
                if facts.alone:
                    shutil.copyfile(file, draft / "tree")
                else:
                    (draft / "tree").symlink_to(file)
            (draft / _FACTS).write_bytes(msgspec.json.encode(facts))
            with self._changing:
                if not self.has(facts.digest):
                    draft.rename(self._folder / facts.digest)
                if not facts.alone:
                    self._write_name(ImageName(name, facts.digest))
        finally:
            delete_tree(draft)

    def rename(self, name: str, digest: str) -> None:
        """Let a name mean an image that is here."""
        with self._changing:
            known = self._read_name(name)
            if known is None or known.digest != digest:
                self._write_name(ImageName(name, digest))

    def alone(self) -> list[str]:
        """Return the digests of images that were built for one environment each."""
        found = []
        for path in self._folder.glob(f"*/{_FACTS}"):
            with contextlib.suppress(ImageMissing):  # deleted meanwhile
                if not path.parent.name.startswith(_DRAFT) and self.facts(path.parent.name).alone:
                    found.append(path.parent.name)
        return found

    def discard(self, digest: str) -> None:
        """Delete an image that has no name; an unknown one is ignored. No environment may use it."""
        with self._changing:
            if self.has(digest):
                self._delete(digest)

    def discard_file(self, file: Path, used: Set[str]) -> None:
        """Delete a file with the images that are links to it, and their names, unless one of them is ``used``.

        Raises OSError.
        """
        with self._changing:
            links = {
                path.parent.name
                for path in self._folder.glob("*/tree")
                if path.exists() and os.path.samefile(path, file)
            }
            if links & used:
                return
            file.unlink(missing_ok=True)  # first: a folder may be read only
            for name in self.names():
                if name.digest in links:
                    self._path_of(name.name).unlink(missing_ok=True)
            for digest in links:
                self._delete(digest)

    def _unpacked(self, archive: Path, tree: Path) -> ImageFacts:
        os.chmod(tree, 0o755)
        limits = [str(self.most_bytes), str(self.most_files)]
        done = subprocess.run(
            [sys.executable, "-I", "-S", unpack.__file__, str(archive), str(tree), *limits],
            stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            said = done.stderr.decode(errors="replace").strip()[-300:]
            raise Unavailable(f"the archive could not be unpacked: {said}") from None
        if "error" in answer:
            raise InvalidRequest(f"the archive is no image: {answer['error']}", pointer="/archive")
        return msgspec.convert(answer, ImageFacts)

    def remove(self, name: str, used: Mapping[str, int]) -> None:
        """Delete a name, and its image when it was the last one.

        ``used``: number of environments upon each digest. Raises NotFound, and Conflict while it is used.
        """
        with self._changing:
            known = self._read_name(name)
            if known is None:
                raise NotFound(f"image {name!r} is not on this node")
            others = [each for each in self.names() if each.digest == known.digest]
            if len(others) == 1 and used.get(known.digest):
                raise Conflict(
                    f"image {name!r} is used by {used[known.digest]} environments: finish their"
                    " trajectories first"
                )
            self._path_of(name).unlink()
            if len(others) == 1:
                self._delete(known.digest)

    def collect(self, used: Mapping[str, int]) -> None:
        """Delete images without a name and without environments, and what a crash left."""
        with self._changing:
            named = {each.digest for each in self.names()}
            for path in self._folder.iterdir():
                if path.name not in (_NAMES, *named) and not used.get(path.name):
                    self._delete(path.name)

    def _delete(self, digest: str) -> None:
        self._facts.pop(digest, None)
        gone = self._folder / f"{_DRAFT}{secrets.token_hex(8)}"
        (self._folder / digest).rename(gone)
        delete_tree(gone)

    def _path_of(self, name: str) -> Path:
        digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        return self._folder / _NAMES / f"{digest}.json"

    def _read_name(self, name: str) -> ImageName | None:
        try:
            return msgspec.json.decode(self._path_of(name).read_bytes(), type=ImageName)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _write_name(self, name: ImageName) -> None:
        path = self._path_of(name.name)
        draft = path.with_suffix(f".{os.getpid()}.draft")
        draft.write_bytes(msgspec.json.encode(name))
        draft.rename(path)
