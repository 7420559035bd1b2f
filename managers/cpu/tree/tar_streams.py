"""Tar streams: trees as archives that are equal, byte by byte, each time that they are made.

Members are in order of their names, with numeric owners and extended attributes, and without numbers of processes and times of reads. So the
digest of one archive is that of the next, and a reader may continue elsewhere what breaks off.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from domain.errors import Unavailable
from managers.cpu.tree.copying import in_namespace

#: What both directions need.
TAR: Final = ("tar", "--xattrs", "--xattrs-include=*", "--numeric-owner")
_SAME_NAMES: Final = "exthdr.name=%d/PaxHeaders/%f,globexthdr.name=GlobalHead,globexthdr.mtime=0,delete=atime,delete=ctime"  # fmt: skip
_CHUNK_BYTES: Final = 256 * 1024


async def tar_stream(
    folder: Path, names: Sequence[str], *, further: str = "", what: str
) -> AsyncGenerator[bytes, None]:
    """Yield the archive of some names in a folder. Raises Unavailable when ``what`` cannot be read to its end.

    ``further``: options of the pax format, as ``keyword=value``.
    """
    options = f"--pax-option={_SAME_NAMES}{further and f',{further}'}"
    words = [*TAR, "--format=posix", "--sort=name", options, "--create", "--directory", str(folder)]
    words += ["--file=-", "--", *names]
    process = await asyncio.create_subprocess_exec(
        *await asyncio.to_thread(in_namespace, words, *[folder / each for each in names]),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={"PATH": os.defpath},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        while piece := await process.stdout.read(_CHUNK_BYTES):
            yield piece
        if await process.wait():
            raise Unavailable(f"{what} cannot be read")
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def extract_tar(folder: Path, first: bytes, pieces: AsyncIterator[bytes]) -> None:
    """Unpack an archive of `tar_stream` into a folder; ``first``: what was read of it before. Raises OSError."""
    words = [*TAR, "--extract", "--preserve-permissions", "--directory", str(folder), "--file=-"]
    process = await asyncio.create_subprocess_exec(
        *in_namespace(words), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={"PATH": os.defpath},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stderr is not None
    complaints = asyncio.ensure_future(process.stderr.read())
    try:
        process.stdin.write(first)
        async for piece in pieces:
            process.stdin.write(piece)
            await process.stdin.drain()
        process.stdin.close()
        said = await complaints
        if await process.wait():
            raise OSError(said.decode(errors="replace").strip()[-300:] or "tar failed")
    finally:
        if process.returncode is None:
            process.kill()
            process.stdin.close()
            await asyncio.gather(complaints, process.wait())
