"""A copy of an image's own shell where its containers can run but not read it."""

from __future__ import annotations

import io
import tarfile
from typing import Final

from managers.cpu.containers.engine import Engine, EngineRefused, Gone
from managers.cpu.containers.environment import Environment

_LINKS: Final = 8
#: Readable by nobody: whoever runs it cannot be looked into (execve(2), prctl(2) PR_SET_DUMPABLE).
_EXECUTE_ONLY: Final = 0o111


async def place_shell(engine: Engine, environment: Environment, image: str) -> None:
    """Put the shell into an environment's control directory. Raises EngineRefused, EngineAway.

    Copies are kept per image and linked, since an image's content never changes.
    """
    facts = await engine.image(image)
    known = environment.directory.parent / "shells" / facts["Id"].removeprefix("sha256:")
    if not known.exists():
        content = await _read_program(engine, environment.container, "/bin/sh")
        known.parent.mkdir(mode=0o700, exist_ok=True)
        draft = known.with_name(f"{known.name}.{environment.name}")
        draft.write_bytes(content)
        draft.chmod(_EXECUTE_ONLY)
        draft.replace(known)
    (environment.control / "shell").hardlink_to(known)


async def _read_program(engine: Engine, container: str, path: str) -> bytes:
    for _ in range(_LINKS):
        try:
            archive, facts = await engine.archive(container, path)
        except Gone as error:
            raise EngineRefused(f"the image has no {path}, which running commands takes") from error
        if not facts["linkTarget"]:
            break
        path = facts["linkTarget"]
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        file = members.extractfile(members.getmembers()[0])
        if file is None:
            raise EngineRefused(f"the image's {path} is no program")
        return file.read()
