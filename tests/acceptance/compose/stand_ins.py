"""Images under the names that Dockerfile and docker-compose.yml ask for, made from Debian packages.

No registry is needed: an engine of a test's own has these images, finds nothing else, and so runs the
shipped files as they are, letter for letter (decision 0047). All are one small Debian, in the release
of the shipped image, with Python, Redis and PostgreSQL; `images/` says how each behaves like the
official one. From the same Debian comes Compose itself. The packages of requirements/core.lock are
fetched as wheels beforehand, since builds in that engine reach no network. All of it is kept:

    python -m tests.acceptance.compose.stand_ins        # make it now
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from requirements.lock import requirement_lines
from tests import debian_files
from tests.architecture.tree import ROOT
from tests.docker_engine import DockerEngine

#: Stand-in → what `images/` has for it.
IMAGES: Final = {
    "python:3.12-slim-trixie": "python",
    "redis:7": "redis",
    "postgres:17": "postgres",
}
_PYTHON: Final = "3.13"
_DEBIAN: Final = debian_files.Recipe(
    name="stand-in",
    suite="trixie",
    variant="minbase",
    packages=tuple(
        "python3 python3-pip python-is-python3 redis-server postgresql postgresql-client"
        " bubblewrap tini curl procps docker-compose".split()
    ),
    left_out=(
        *(f"/usr/share/{name}/*" for name in ("doc", "man", "locale")),
        # The compiler of PostgreSQL's queries: a third of everything.
        *("*/libLLVM*", "*/lib/llvmjit*", "*/lib/bitcode/*"),
    ),
    # No cluster of Debian's own.
    prepare=(
        'mkdir -p "$1/etc/postgresql-common" &&'
        ' echo "create_main_cluster = false" > "$1/etc/postgresql-common/createcluster.conf"'
    ),
    # Without package sources `apt-get update` has nothing to ask for and finds what is installed.
    finish='rm -rf "$1"/etc/apt/sources.list* "$1"/var/lib/apt/lists/*',
)
_BUILD_SECONDS: Final = 600
_COMPOSE: Final = "docker-compose"
_FILES: Final = Path(__file__).parent / "images"


def missing_programs() -> list[str]:
    """Return what has to be installed before the shipped files can be run."""
    needed = ("dockerd", "mmdebstrap", "ip", "unshare", "nsenter", "curl")
    return [name for name in needed if shutil.which(name) is None]


def load(engine: DockerEngine) -> None:
    """Load all stand-ins into an engine."""
    with engine.client(_BUILD_SECONDS) as client:
        client.import_image_from_file(str(debian_files.make(_DEBIAN)), "stand-in", "latest")
        for tag, name in IMAGES.items():
            said = client.build(
                fileobj=_context(name), custom_context=True, dockerfile=f"{name}.Dockerfile",
                tag=tag, rm=True, decode=True,
            )  # fmt: skip
            for line in said:
                if "error" in line:
                    raise RuntimeError(f"{tag}: {line['error']}")


def compose() -> Path:
    """Return the program, taken out of the Debian once."""
    archive = debian_files.make(_DEBIAN)
    program = archive.with_name(f"{archive.stem}-{_COMPOSE}")
    if not program.exists():
        with tarfile.open(archive) as files:
            member = next(
                each for each in files
                if each.isfile() and each.name.endswith(f"/{_COMPOSE}") and each.size > 2**20
            )  # fmt: skip
            inside = files.extractfile(member)
            assert inside is not None
            draft = program.with_suffix(".new")
            draft.write_bytes(inside.read())
        draft.chmod(0o755)
        draft.replace(program)
    return program


def wheels() -> Path:
    """Return a folder with what requirements/core.lock and s3.lock name, for the Python of the stand-in."""
    locks = [(ROOT / "requirements" / f"{name}.lock").read_text() for name in ("core", "s3")]
    lines = [line for text in locks for line in requirement_lines(text)]
    required = [Requirement(line.rstrip(" \\")) for line in lines]
    target = {"python_version": _PYTHON, "python_full_version": f"{_PYTHON}.0"}
    wanted = [
        f"{each.name}{each.specifier}"
        for each in required
        if each.marker is None or each.marker.evaluate(target)
    ]
    digest = hashlib.blake2b("\n".join((_PYTHON, *wanted)).encode(), digest_size=8).hexdigest()
    folder = debian_files.cache() / f"wheels-{digest}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.with_suffix(".new")
        shutil.rmtree(draft, ignore_errors=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input",
             "--only-binary=:all:", "--python-version", _PYTHON, "--dest", str(draft), *wanted],
            check=True,
        )  # fmt: skip
        draft.replace(folder)
    return folder


def _context(name: str) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as files:
        files.add(_FILES, arcname=".")
        if name == "python":
            files.add(wheels(), arcname="wheels")
    packed.seek(0)
    return packed


if __name__ == "__main__":
    print(debian_files.make(_DEBIAN), compose(), wheels())  # noqa: T201 - a command says what it made
