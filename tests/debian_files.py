"""Files of a small Debian as one archive, from which images are made.

It takes a minute, so the archive is kept, and made again when its recipe changes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import astuple, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Recipe:
    """What goes into an archive."""

    name: str
    packages: tuple[str, ...]
    #: Files of packages that no test needs, as `dpkg` names them.
    left_out: tuple[str, ...]
    #: What a shell does at the end; ``$1`` is the root of the files.
    finish: str
    #: The same before packages are configured.
    prepare: str = "true"
    #: As `mmdebstrap` has it: ``extract`` unpacks and configures nothing.
    variant: str = "extract"
    #: The release; empty: that of this machine, whose package sources are known to work.
    suite: str = ""

    @property
    def archive(self) -> Path:
        """Where the archive is kept."""
        text = "\n".join(map(str, astuple(self)))
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return cache() / f"{self.name}-{digest}.tar"


def cache() -> Path:
    """Return where tests keep what takes long to make."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tangram"


def make(recipe: Recipe) -> Path:
    """Return a recipe's archive, made when there is none. Raises RuntimeError with what went wrong."""
    archive = recipe.archive
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_name(f"{archive.stem}.{os.getpid()}.tar")
    command = [
        "mmdebstrap", "--quiet", "--mode=root", f"--variant={recipe.variant}",
        f"--include={','.join(recipe.packages)}",
        *(f"--dpkgopt=path-exclude={path}" for path in recipe.left_out),
        f"--essential-hook={recipe.prepare}", f"--customize-hook={recipe.finish}",
        recipe.suite or _suite(), str(draft),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        draft.unlink(missing_ok=True)
        raise RuntimeError(f"mmdebstrap: {done.stderr[-4000:]}")
    draft.replace(archive)
    return archive


def _suite() -> str:
    facts = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    return facts.get("VERSION_CODENAME", "stable").strip('"')
