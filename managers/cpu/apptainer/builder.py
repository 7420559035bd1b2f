"""Builder of images: from the name that an environment declares to a SIF file among the images of the node.

    builder = ImageBuilder(settings, state, trees, apptainer, runner, words)
    await builder.ensure("swe:django-1", folder.name)
                                    its definition is built if it must be; a name without one is left alone
    trees.ensure(folder, spec, …)   has it

A name with a definition is looked up again by each new environment, so a changed definition is used from the next one on.
Users of one name at once wait for one build. A build is one process group with a tag of its own; it runs on the shared cores
of the node, and at most `_BUILDS` at once.

An image of ``scratch`` is marked as `ImageFacts.alone` and has no name: it is reserved for the folder that it was built for,
and deleted when no record is upon it. The next start deletes it like all images without a name.

Before a file becomes an image it is run once: that shows that it runs here, and which variables it sets.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import secrets
import subprocess
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from domain.errors import InvalidRequest
from managers.cpu.apptainer.cache import FAILED_SECONDS, CachePlace, FailedBuilds, SifCache
from managers.cpu.apptainer.definitions import Definition, Definitions
from managers.cpu.apptainer.program import Apptainer
from managers.cpu.apptainer.settings import ApptainerSettings, CacheMode
from managers.cpu.process.commands import SpawnedProgram
from managers.cpu.process.invocation import PATH, ResourceLimits
from managers.cpu.process.process_table import ProcessTable
from managers.cpu.process.process_tag import ProcessTagger
from managers.cpu.tree.images import ImageFacts, ImageMissing, ImageName, delete_tree
from managers.cpu.tree.trees import Trees

#: Folder below the state directory: definitions that are being built, their logs, and the cache by default.
FOLDER: Final = "apptainer"
#: Below it: what Apptainer downloads.
_LAYERS: Final = "layers"
_BUILDS: Final = 2
_TRIAL_SECONDS: Final = 120.0
_SAID_BYTES: Final = 1500
#: Variables of the worker that a build gets: it downloads.
_PASSED: Final = ("HOME", "LANG", "http_proxy", "https_proxy", "no_proxy")
#: Variables of every container, which are not the image's own.
_NOT_OF_IMAGE: Final = frozenset(
    "HOME PWD OLDPWD SHLVL _ PS1 PROMPT_COMMAND TERM USER_PATH".split()
)
_LIBRARIES: Final = "/.singularity.d/libs"
_PREFIXES: Final = ("APPTAINER_", "SINGULARITY_")
#: Before the variables that the trial prints: Apptainer may warn before.
_MARK: Final = "tangram-variables"
_log = logging.getLogger(__name__)


class BuildFailed(ImageMissing):
    """The image of an environment could not be built; the message has the end of the build's output."""


@dataclass(frozen=True)
class BuildRunner:
    """Runs programs of a driver, tagged, to their end."""

    tagger: ProcessTagger
    table: ProcessTable
    limits: ResourceLimits
    grace_seconds: float
    patience_seconds: float

    async def run(
        self, words: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path, seconds: float
    ) -> int:
        """Run a program with its output in ``log``; return its exit code. Raises TimeoutError, OSError.

        What it left, and all of it when this is cancelled or takes too long, is ended by its tag.
        """
        tag = self.tagger.tag(f"build-{secrets.token_hex(8)}")
        ended = asyncio.Event()
        self.table.expect(tag)
        try:
            process = await asyncio.to_thread(self._spawn, tag, words, log, env, cwd)
            self.table.enter(tag, process.pid)
            program = SpawnedProgram(process)
            program.on_end(ended.set)
            try:
                async with asyncio.timeout(seconds):
                    await ended.wait()
            finally:
                await asyncio.shield(self._end(tag, ended))
            return await program.wait()
        finally:
            self.table.leave(tag)

    def _spawn(
        self, tag: int, words: Sequence[str], log: Path, env: Mapping[str, str], cwd: Path
    ) -> subprocess.Popen[bytes]:
        with open(log, "wb") as output:
            return subprocess.Popen(
                [*self.limits.prefix(tag), *words], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, env=dict(env), cwd=cwd, start_new_session=True,
            )  # fmt: skip

    async def _end(self, tag: int, ended: asyncio.Event) -> None:
        if not ended.is_set():
            asked = self.table.ask_to_end(tag)
            try:
                async with asyncio.timeout(self.grace_seconds):
                    await ended.wait()
            except TimeoutError:
                pass
            await self.table.end(tag, self.patience_seconds, asked)
            await ended.wait()
        elif self.table.left_behind(tag):
            await self.table.end(tag, self.patience_seconds)


class ImageBuilder:
    """Builds the images of one driver."""

    def __init__(
        self,
        settings: ApptainerSettings,
        state: Path,
        trees: Trees,
        apptainer: Apptainer,
        runner: BuildRunner,
        exec_words: Callable[[Path], Sequence[str]],
    ) -> None:
        """``exec_words``: returns the command line that runs the rest in an image, without an environment."""
        self._settings, self._trees, self._apptainer = settings, trees, apptainer
        self._store = trees.images
        self._runner, self._exec_words = runner, exec_words
        self._folder = state / FOLDER
        self._is_scratch = settings.cache_mode is CacheMode.SCRATCH
        self._definitions = Definitions(
            Path(settings.definitions) if settings.definitions else None
        )
        cache = Path(settings.cache) if settings.cache else self._folder / "cache"
        #: No other worker writes in its folder.
        self._is_own = not settings.cache
        most = settings.cache_bytes or (0 if self._is_own else math.inf)
        self._cache = SifCache(cache, settings.cache_mode, most)
        self._failed = FailedBuilds()
        self._at_once = asyncio.Semaphore(_BUILDS)
        #: Image → what makes it; of ``scratch`` the folder's name.
        self._making: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def clean(self) -> None:
        """Delete what a killed worker was building, when its builds were ended. Blocks."""
        self._cache.clean(0 if self._is_own else self._settings.build_seconds)
        for path in self._folder.glob("*"):
            if path not in (self._cache.folder, self._folder / _LAYERS) and path.is_dir():
                delete_tree(path)
            elif path.suffix in (".def", ".log"):
                path.unlink(missing_ok=True)

    async def ensure(self, image: str, folder: str) -> None:
        """Make an image that has a definition one of the node, for the environment in the folder of that name.

        Raises BuildFailed, ImageMissing, InvalidRequest.
        """
        if self._trees.reserved(folder) == image:
            return
        key = folder if self._is_scratch else image
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = self._begin(self._ensure(image, folder))
            making.add_done_callback(lambda _: self._making.pop(key, None))
        # Another user may wait for it, and the file is of use later in any case.
        await asyncio.shield(making)

    async def discard(self, folder: str) -> None:
        """Forget a removed environment, and delete images that were built for one alone and that none is upon."""
        making = self._making.get(folder) if self._is_scratch else None
        if making is not None:
            making.cancel()
            await asyncio.wait({making})
        self._trees.forget(folder)
        if self._is_scratch:
            await asyncio.to_thread(self._discard)

    def _discard(self) -> None:
        try:
            # The images first: one that is built later is not among them.
            for digest in set(self._store.alone()) - self._trees.used_images():
                self._store.discard(digest)
        except InvalidRequest as error:  # a record of another version
            _log.error("images that no environment uses are kept: %s", error)

    async def close(self) -> None:
        """End the builds."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Its last user may be gone.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _ensure(self, image: str, folder: str) -> None:
        definition = await asyncio.to_thread(self._definitions.find, image)
        if definition is None:
            await self._trees.arrivals.ensure(image)
            await asyncio.to_thread(self._check_imported, image)
            return
        try:
            async with self._cache.place(definition) as place:
                # Each file of `scratch` has a name of its own.
                key = (definition.text, "" if self._is_scratch else place.file.name)
                if said := self._failed.of(key):
                    raise BuildFailed(f"{said} (it is tried again after {FAILED_SECONDS:g} s)")
                is_new = not place.is_ready
                try:
                    if is_new:
                        async with self._at_once:
                            await self._build(definition, place)
                    await self._adopt(definition, place.file, folder)
                except BuildFailed as error:
                    self._failed.add(key, str(error))
                    raise
            if is_new:
                await asyncio.to_thread(self._shrink)
        except OSError as error:
            raise BuildFailed(f"image {image!r} could not be built: {error}") from error

    def _shrink(self) -> None:
        """Delete files of the cache above its limit, with the images of this node that no environment uses."""
        try:
            used = self._trees.used_images()
            for file in self._cache.surplus():
                self._store.discard_file(file, used)
        except (OSError, InvalidRequest) as error:
            _log.error("the cache of SIF files may exceed its limit: %s", error)

    def _check_imported(self, image: str) -> None:
        """Raise ImageMissing for an image that has no definition and was not imported."""
        try:
            self._store.find(image)
        except ImageMissing as error:
            folder = self._settings.definitions
            if not folder:
                cure = "or name a folder of definitions by TANGRAM_APPTAINER_DEFINITIONS"
            else:
                known = ", ".join(self._definitions.names()) or "nothing"
                cure = f"or write its definition to {folder}, which defines {known}"
            raise ImageMissing(f"{error}; {cure}") from None

    async def _build(self, definition: Definition, place: CachePlace) -> None:
        image = definition.image
        self._folder.mkdir(mode=0o700, exist_ok=True)
        source = self._folder / f"{secrets.token_hex(8)}.def"
        log = source.with_suffix(".log")
        try:
            source.write_text(definition.text)
            words = [self._apptainer.program, "build", "--fakeroot", str(place.draft), str(source)]
            seconds = self._settings.build_seconds
            try:
                code = await self._runner.run(
                    words, log, self._variables(), definition.folder, seconds
                )
            except TimeoutError:
                raise BuildFailed(
                    f"the build of image {image!r} took longer than {seconds:g} s, which"
                    f" TANGRAM_APPTAINER_BUILD_SECONDS permits; it said: {_end_of(log)}"
                ) from None
            if code or not place.draft.exists():
                raise BuildFailed(
                    f"the build of image {image!r} failed with status {code}{self._cure()}; it said: {_end_of(log)}"
                )
            place.keep()
        finally:
            for path in (source, log):
                path.unlink(missing_ok=True)

    def _cure(self) -> str:
        return f" ({self._apptainer.one_user})" if self._apptainer.one_user else ""

    def _variables(self) -> dict[str, str]:
        """Return the variables of a build: none of the worker's but those that a download needs."""
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        folder = str(self._folder)
        return {
            "PATH": os.environ.get("PATH", PATH), **passed,
            "APPTAINER_TMPDIR": folder, "APPTAINER_CACHEDIR": f"{folder}/{_LAYERS}",
        }  # fmt: skip

    async def _adopt(self, definition: Definition, file: Path, folder: str) -> None:
        """Store a file as an image of the node, once it has run; one of ``scratch`` for a folder alone."""
        facts = await asyncio.to_thread(os.stat, file)
        version = f"{file.name} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns}"
        digest = hashlib.blake2b(version.encode(), digest_size=16).hexdigest()
        image = definition.image
        if not await asyncio.to_thread(self._store.has, digest):
            env = await self._variables_of(image, file)
            made = ImageFacts(digest, env, bytes=facts.st_size, files=1, alone=self._is_scratch)
            if self._is_scratch:
                self._trees.reserve(folder, ImageName(image, digest))
            await asyncio.to_thread(self._store.adopt, image, file, made)
        else:
            await asyncio.to_thread(self._store.rename, image, digest)

    async def _variables_of(self, image: str, file: Path) -> dict[str, str]:
        """Run an image; return the variables that it sets. Raises BuildFailed when it does not run."""
        log = self._folder / f"{secrets.token_hex(8)}.log"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        words = [*self._exec_words(file), "/bin/sh", "-c", f"echo {_MARK}; env -0"]
        try:
            code = await self._runner.run(
                words, log, self._variables(), self._folder, _TRIAL_SECONDS
            )
            if code:
                raise BuildFailed(
                    f"image {image!r} was built and does not run{self._cure()}: {_end_of(log)}"
                )
            return variables_of(log.read_bytes())
        except TimeoutError:
            raise BuildFailed(
                f"image {image!r} was built and does not run: no end in {_TRIAL_SECONDS:g} s"
            ) from None
        finally:
            log.unlink(missing_ok=True)


def variables_of(said: bytes) -> dict[str, str]:
    """Return the image's own variables from the output of its trial; none where the image has no `env -0`."""
    found = {}
    for entry in said.partition(f"{_MARK}\n".encode())[2].split(b"\0")[:-1]:
        name, _, value = entry.decode(errors="replace").partition("=")
        is_libraries = (name, value) == ("LD_LIBRARY_PATH", _LIBRARIES)
        if not is_libraries and name not in _NOT_OF_IMAGE and not name.startswith(_PREFIXES):
            found[name] = value
    return found


def _end_of(log: Path) -> str:
    """Return the end of a build's output."""
    try:
        said = log.read_bytes()[-_SAID_BYTES:].decode(errors="replace").strip()
    except OSError:
        said = ""
    return said or "nothing"
