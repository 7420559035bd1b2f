"""Unpacking of an image's archive: a program without other modules of Tangram (``python -I -S unpack.py``).

    unpack.py ARCHIVE DIRECTORY MOST_BYTES MOST_FILES   →   one line of JSON: {"digest", "env", …} or {"error"}

The archive is a tar of a root file system, or of an image as ``docker save`` or an OCI layout has it, each possibly
compressed. That of another node has the variables of its image in a header (`VARIABLES`). The program makes ``DIRECTORY`` its root before it reads a member (in a user namespace of its own,
where it is not root), so no name and no link in the archive leads out of it. What is refused is refused with the
name of the member. Device files below ``/dev`` are left out, as environments have a ``/dev`` of their own.

The digest is of the tree and its variables, not of the archive: the same files from a folder, a tar or an engine
are one image.
"""

from __future__ import annotations

import base64
import bz2  # noqa: F401  imported before the root changes; so are the next three
import ctypes
import gzip  # noqa: F401
import hashlib
import json
import lzma
import os
import re
import shutil
import stat
import sys
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, Final

_MOST_ID: Final = 65535
_PIECE_BYTES: Final = 1 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
#: Names at the top of an image's archive; any other name is of a root file system.
_IMAGE_NAME: Final = re.compile(
    r"(blobs|index\.json|manifest\.json|oci-layout|repositories|[0-9a-f]{64}(\.json|\.tar)?)(/|$)"
)
#: Directories that every environment mounts something upon, or needs; and their modes.
_NEEDED: Final = {"proc": 0o755, "dev": 0o755, ".tangram": 0o755, "tmp": 0o1777}
#: Header of a whole archive: the variables of its image, as JSON in base 64.
VARIABLES: Final = "TANGRAM.variables"
#: Part of the disk that an image may not use.
_RESERVE: Final = 0.05
_NEW_USER: Final = 0x1000_0000


class BadArchive(Exception):
    """The archive cannot be an image; the message says why."""


class _ImageTree:
    """Files that are unpacked below ``/``, which is the new tree already."""

    def __init__(self, most_bytes: int, most_files: int, *, owners: bool) -> None:
        self._most_bytes, self._most_files, self._owners = most_bytes, most_files, owners
        self.bytes = self.files = 0
        self._since_look = 0
        #: Modes and times of directories, set last.
        self._directories: dict[str, tarfile.TarInfo] = {}
        #: Paths of the present layer.
        self._present: set[str] = set()

    def layer(self, source: IO[bytes]) -> dict[str, str]:
        """Unpack one layer upon those before it; return the headers of the archive."""
        self._present = set()
        with tarfile.open(fileobj=source, mode="r|*", errorlevel=2) as archive:
            for member in archive:
                self._unpack(archive, member)
            return dict(archive.pax_headers)

    def finish(self) -> None:
        """Set modes and times of directories; make what environments need."""
        for path, member in sorted(self._directories.items(), reverse=True):
            if os.path.isdir(path) and not os.path.islink(path):
                os.utime(path, (member.mtime, member.mtime))
        for name, mode in _NEEDED.items():
            path = f"/{name}"
            if not os.path.lexists(path):
                os.mkdir(path)
                os.chmod(path, mode)
            if os.path.islink(path) or not os.path.isdir(path):
                raise BadArchive(f"{path} is not a directory, so nothing can be mounted there")
        if not os.path.exists("/bin/sh"):
            raise BadArchive("it has no /bin/sh, which starts every command")

    def _unpack(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise BadArchive(f"{member.name!r} leaves the tree")
        if not parts:
            self._own("/", member)
            return
        path = "/" + "/".join(parts)
        parent, name = os.path.split(path)
        if name == _OPAQUE:
            self._clear(parent)
        elif name.startswith(_WHITEOUT):
            _remove(os.path.join(parent, name[len(_WHITEOUT) :]))
        elif not _is_left_out(member, parts):
            try:
                os.makedirs(parent, exist_ok=True)
            except OSError:
                raise BadArchive(f"{member.name!r} is below what is no directory in it") from None
            self._count(member)
            self._make(archive, member, path)
            self._present.add(path)

    def _count(self, member: tarfile.TarInfo) -> None:
        self.files += 1
        self.bytes += member.size
        self._since_look += member.size
        if self.bytes > self._most_bytes or self.files > self._most_files:
            raise BadArchive(
                f"it is too large: more than {self._most_bytes} bytes or {self._most_files} files"
                " (TANGRAM_NODE_IMAGE_BYTES)"
            )
        if self._since_look > 64 * _PIECE_BYTES:
            self._since_look = 0
            space = os.statvfs("/")
            if space.f_bavail < _RESERVE * space.f_blocks:
                raise BadArchive("it is too large: the disk of the node is nearly full")

    def _make(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if member.isdir():
            if os.path.islink(path) or not os.path.isdir(path):
                _remove(path)
                os.mkdir(path)
            self._directories[path] = member
        elif member.issym():
            _remove(path)
            os.symlink(member.linkname, path)
        elif member.islnk():
            _remove(path)
            os.link("/" + member.linkname.lstrip("/"), path, follow_symlinks=False)
            return
        elif member.isfifo():
            _remove(path)
            os.mkfifo(path)
        elif member.isreg():
            _remove(path)
            source = archive.extractfile(member)
            assert source is not None
            with open(path, "xb") as target:
                shutil.copyfileobj(source, target, _PIECE_BYTES)
        else:
            raise BadArchive(f"{member.name!r} is a device file, or of an unknown kind")
        self._own(path, member)

    def _own(self, path: str, member: tarfile.TarInfo) -> None:
        if max(member.uid, member.gid) > _MOST_ID:
            raise BadArchive(f"{member.name!r} belongs to an id above {_MOST_ID}")
        if self._owners:
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
        if member.issym():
            return
        # Without owners, a program with set-user-id would be one of the worker's user.
        os.chmod(path, member.mode & (0o7777 if self._owners else 0o1777))
        if not member.isdir():
            os.utime(path, (member.mtime, member.mtime))

    def _clear(self, directory: str) -> None:
        """Delete what earlier layers have in a directory."""
        if os.path.isdir(directory):
            for name in os.listdir(directory):
                path = os.path.join(directory, name)
                if path not in self._present:
                    _remove(path)


def _is_left_out(member: tarfile.TarInfo, parts: list[str]) -> bool:
    return (member.ischr() or member.isblk()) and parts[0] == "dev"


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def unpack(source: IO[bytes], unpacker: _ImageTree) -> dict[str, str]:
    """Unpack an archive; return the variables of its image. Raises BadArchive, tarfile.TarError, OSError."""
    if not _is_image(source):
        source.seek(0)
        return _variables(unpacker.layer(source).get(VARIABLES, ""))
    source.seek(0)
    with tarfile.open(fileobj=source, mode="r:*") as outer:
        layers, config = _contents(outer)
        for name in layers:
            layer = _member(outer, name)
            if layer.read(len(_ZSTD)) == _ZSTD:
                raise BadArchive(f"layer {name} is compressed with zstd: save the image with gzip")
            layer.seek(0)
            unpacker.layer(layer)
    variables = (config.get("config") or {}).get("Env") or []
    return dict(each.split("=", 1) for each in variables if "=" in each)


def _variables(header: str) -> dict[str, str]:
    """Return the variables that another node wrote into its archive. Raises ValueError."""
    found = json.loads(base64.b64decode(header)) if header else {}
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise BadArchive(f"its header {VARIABLES} is none of a node")
    return found


def _is_image(source: IO[bytes]) -> bool:
    """Say whether an archive is of an image: all its names are those of an image's archive."""
    found = False
    with tarfile.open(fileobj=source, mode="r:*") as outer:
        for member in outer:
            name = member.name.removeprefix("./").lstrip("/")
            if name and not _IMAGE_NAME.match(name):
                return False
            found = found or name in ("manifest.json", "index.json")
    return found


def _contents(outer: tarfile.TarFile) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the layers, the lowest first, and the configuration of the one image."""
    names = {each.removeprefix("./") for each in outer.getnames()}
    if "manifest.json" in names:
        images = json.load(_member(outer, "manifest.json"))
        _check_one(images)
        return images[0]["Layers"], json.load(_member(outer, images[0]["Config"]))
    manifests = json.load(_member(outer, "index.json"))["manifests"]
    _check_one(manifests)
    manifest = json.load(_member(outer, _blob(manifests[0])))
    if "manifests" in manifest:  # one image for several platforms
        _check_one(manifest["manifests"])
        manifest = json.load(_member(outer, _blob(manifest["manifests"][0])))
    layers = [_blob(each) for each in manifest["layers"]]
    return layers, json.load(_member(outer, _blob(manifest["config"])))


def _check_one(images: list[Any]) -> None:
    if len(images) != 1:
        raise BadArchive(f"it holds {len(images)} images: save one image for one platform")


def _blob(descriptor: dict[str, Any]) -> str:
    return "blobs/" + str(descriptor["digest"]).replace(":", "/", 1)


def _member(outer: tarfile.TarFile, name: str) -> IO[bytes]:
    for each in (name, f"./{name}"):
        try:
            found = outer.extractfile(each)
        except KeyError:
            continue
        if found is not None:
            return found
    raise BadArchive(f"{name} is missing in it")


def home_of_root() -> str:
    """Return the home directory of uid 0 in this tree."""
    try:
        with open("/etc/passwd", errors="replace") as accounts:
            for line in accounts:
                fields = line.rstrip("\n").split(":")
                if len(fields) > 5 and fields[2] == "0" and fields[5].startswith("/"):
                    return fields[5]
    except OSError:
        pass
    return "/root"


def digest_of(env: dict[str, str]) -> str:
    """Return the digest of the tree at ``/`` and of the variables of its image."""
    total = hashlib.sha256(json.dumps(sorted(env.items())).encode())
    for path in _walk("/"):
        facts = os.lstat(path)
        total.update(f"\n{path!r} {facts.st_mode:o} {facts.st_uid} {facts.st_gid} ".encode())
        if stat.S_ISLNK(facts.st_mode):
            total.update(os.fsencode(os.readlink(path)))
        elif stat.S_ISREG(facts.st_mode):
            with open(path, "rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:40]


def _walk(directory: str) -> Iterator[str]:
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        yield path
        if os.path.isdir(path) and not os.path.islink(path):
            yield from _walk(path)


def _enter(directory: str) -> bool:
    """Make a directory the root of this process; return whether it may give files to other users."""
    is_root = os.geteuid() == 0
    if not is_root:
        uid, gid = os.geteuid(), os.getegid()
        if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER) < 0:
            raise OSError(ctypes.get_errno(), "a user namespace cannot be made")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    os.chroot(directory)
    os.chdir("/")
    return is_root


def main() -> None:
    """Unpack as the command line says; print the result."""
    archive, directory, most_bytes, most_files = sys.argv[1:]
    sys.setrecursionlimit(20_000)
    answer: dict[str, Any]
    try:
        with open(archive, "rb") as source:
            os.umask(0)
            owners = _enter(directory)
            unpacker = _ImageTree(int(most_bytes), int(most_files), owners=owners)
            env = unpack(source, unpacker)
            unpacker.finish()
        answer = {
            "digest": digest_of(env), "env": env, "home": home_of_root(),
            "bytes": unpacker.bytes, "files": unpacker.files,
        }  # fmt: skip
    except BadArchive as error:
        answer = {"error": str(error)}
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, KeyError, ValueError) as error:
        answer = {"error": f"it cannot be read: {error}"}
    except (OSError, RecursionError) as error:
        answer = {"error": f"it cannot be unpacked: {error}"}
    print(json.dumps(answer))  # noqa: T201


if __name__ == "__main__":
    main()
