"""Definitions of images by name: files of Apptainer's own format, and Jinja2 templates of them.

    swe.def          the image ``swe``
    swe.def.j2       the images ``swe`` and ``swe:TAG``; the template gets ``image``, ``name`` and ``tag``

The files belong to the operator of the node. The tag of an image comes from a submitter, and gets into commands that build
it, so it has letters, digits and ``. _ -`` alone, and begins with a letter or a digit: no path, option, space or quote.

The key of a definition changes with all that decides what is built: its text, and the files of the host that it copies. What
it takes from a network is not in the key; name a digest there, not a tag that moves. Each new environment asks for the key, so
a file is read again only when its inode, size or times have changed (`ContentDigests`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from domain.errors import InvalidRequest
from managers.cpu.tree.images import ImageMissing

PLAIN: Final = ".def"
TEMPLATE: Final = ".def.j2"
#: Header that a definition begins with.
BOOTSTRAP: Final = "bootstrap"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SECTION: Final = re.compile(r"%([a-z]+)[ \t]*(.*)")
_HEADER: Final = re.compile(r"([A-Za-z]+)[ \t]*:[ \t]*(.*)")
#: Sections of the format that have text to parse, and are not of one application (``%app…``).
_SECTIONS: Final = frozenset(
    "setup files environment post test labels help runscript startscript arguments pre".split()
)
#: Longer than a tick of any clock of a file system.
_SETTLED_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Section:
    """One section of a definition."""

    name: str
    #: What is behind its name on the line.
    options: str
    body: str


@dataclass(frozen=True)
class Definition:
    """The definition of one image, without a template's expressions."""

    image: str
    text: str
    #: Where relative paths of the host begin.
    folder: Path
    header: Mapping[str, str] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()

    def of(self, name: str) -> Iterator[Section]:
        """Yield the sections of a name, in order."""
        return (each for each in self.sections if each.name == name)

    def files(self) -> Iterator[tuple[Path, str]]:
        """Yield the files of the host that are copied, with their path inside. Raises InvalidRequest."""
        for section in self.of("files"):
            if section.options:
                continue  # from another stage
            for line in section.body.splitlines():
                try:
                    words = shlex.split(line, comments=True)
                except ValueError as error:
                    raise InvalidRequest(f"definition of {self.image}: %files: {error}") from None
                if words:
                    yield self.folder / words[0], words[1] if len(words) > 1 else words[0]

    def key(self, contents: ContentDigests) -> str:
        """Return the digest of all that decides what is built. Blocks. Raises InvalidRequest for a missing file."""
        digest = hashlib.blake2b(self.text.encode(), digest_size=16)
        sources = [source for source, _ in self.files()]
        if self.header.get(BOOTSTRAP) == "localimage":
            sources.append(self.folder / self.header.get("from", ""))
        for source in sources:
            try:
                _add_tree(digest, source, contents)
            except OSError as error:
                raise InvalidRequest(
                    f"definition of {self.image}: {source} cannot be read: {error.strerror}"
                ) from None
        return digest.hexdigest()


class ContentDigests:
    """Digests of files of the host, each read once until its facts change; may be used by several threads.

    A file that was changed less than `_SETTLED_SECONDS` before it is read is read again the next time: a second change
    within one tick of the file system's clock leaves all its facts as they were.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - compared with times of files
        most: int = 100_000,
    ) -> None:
        self._clock = clock
        #: Path → facts of the file, and its digest.
        self._known: dict[str, tuple[tuple[int, ...], bytes]] = {}
        self._most = most

    def of(self, source: Path, found: os.stat_result) -> bytes:
        """Return the digest of a file's content. Raises OSError."""
        facts = (
            found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns,
        )  # fmt: skip
        known = self._known.get(str(source))
        if known is not None and known[0] == facts:
            return known[1]
        is_settled = self._clock() - found.st_ctime > _SETTLED_SECONDS
        with open(source, "rb") as file:
            content = hashlib.file_digest(file, _content_hash).digest()
        if is_settled:
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[str(source)] = (facts, content)
        return content


class Definitions:
    """The definitions of one folder; its methods block."""

    def __init__(self, folder: Path | None) -> None:
        """``folder``: None where the node has none."""
        self._folder = folder
        self._templates = SandboxedEnvironment(
            undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
        )

    def names(self) -> list[str]:
        """Return the names that have a definition. Raises OSError."""
        if self._folder is None:
            return []
        found = {
            path.name.removesuffix(suffix)
            for suffix in (PLAIN, TEMPLATE)
            for path in self._folder.glob(f"*{suffix}")
        }
        return sorted(found)

    def find(self, image: str) -> Definition | None:
        """Return the definition of an image; None where its name has none. Raises ImageMissing, InvalidRequest."""
        if self._folder is None:
            return None
        name, colon, tag = image.partition(":")
        if _NAME.fullmatch(name) is None:
            return None
        try:
            text = self._read(name, tag if colon else None, image)
        except OSError as error:
            raise ImageMissing(f"the definition of {image!r} cannot be read: {error}") from error
        return None if text is None else parse_definition(image, text, self._folder)

    def _read(self, name: str, tag: str | None, image: str) -> str | None:
        assert self._folder is not None
        plain, template = self._folder / f"{name}{PLAIN}", self._folder / f"{name}{TEMPLATE}"
        if plain.is_file():
            if tag is not None:
                raise ImageMissing(
                    f"image {image!r}: {plain.name} is no template, so it has no tags: name the image {name!r},"
                    f" or make {template.name}"
                )
            return plain.read_text()
        if not template.is_file():
            return None
        if tag is not None and _NAME.fullmatch(tag) is None:
            raise InvalidRequest(
                f"image {image!r}: its tag has other characters than letters, digits and . _ -, or is too long",
                pointer="/environment/image",
            )
        values = {"image": image, "name": name, "tag": tag or ""}
        try:
            return self._templates.from_string(template.read_text()).render(values)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            line = getattr(error, "lineno", None)
            place = f"{template.name}:{line}" if line else template.name
            raise InvalidRequest(f"image {image!r}: {place}: {error}") from error


def parse_definition(image: str, text: str, folder: Path) -> Definition:
    """Return a definition by its text. Raises InvalidRequest that names what is wrong."""
    header: dict[str, str] = {}
    sections: list[tuple[str, str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        found = _SECTION.match(line)
        if found is not None and (found[1] in _SECTIONS or found[1].startswith("app")):
            sections.append((found[1], found[2].strip(), []))
        elif sections:
            sections[-1][2].append(line)
        elif line.strip() and not line.lstrip().startswith("#"):
            entry = _HEADER.fullmatch(line.strip())
            if entry is None:
                raise InvalidRequest(
                    f"definition of {image}, line {number}: {line.strip()[:60]!r} is neither KEY: VALUE nor"
                    " a section"
                )
            header[entry[1].lower()] = entry[2].strip()
    if not header.get(BOOTSTRAP):
        raise InvalidRequest(
            f"definition of {image} has no Bootstrap: begin it with a line like Bootstrap: scratch"
        )
    made = tuple(Section(name, options, "\n".join(body) + "\n") for name, options, body in sections)
    return Definition(image, text, folder, header, made)


def _add_tree(digest: hashlib.blake2b, source: Path, contents: ContentDigests) -> None:
    """Add the names, modes and contents of a file, or of all files of a folder. Raises OSError."""
    facts = os.stat(source)
    digest.update(f"\0{source.name}\0{facts.st_mode:o}\0".encode(errors="surrogateescape"))
    if stat.S_ISDIR(facts.st_mode):
        for name in sorted(os.listdir(source)):
            _add_tree(digest, source / name, contents)
        return
    digest.update(contents.of(source, facts))


def _content_hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)
