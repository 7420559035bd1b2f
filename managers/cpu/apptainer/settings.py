"""Settings of isolation ``apptainer``, as the operator of a node sets them: ``TANGRAM_APPTAINER_…``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from domain.errors import InvalidRequest

#: Start of their names among the settings of a node.
PREFIX: Final = "apptainer_"


class CacheMode(StrEnum):
    """How long a SIF file is used."""

    #: Built for one environment, and deleted with it.
    SCRATCH = "scratch"
    #: Built once for each content of its definition.
    VERSIONED = "versioned"
    #: Built once for each name by its first user, under a file lock that all workers of a shared folder see.
    LOCK = "lock"


@dataclass(frozen=True)
class ApptainerSettings:
    """Settings of this isolation on a node."""

    #: Path of the program; empty: the first one in PATH.
    program: str = ""
    #: Folder of definitions: ``NAME.def`` and ``NAME.def.j2``; empty: images are imported only.
    definitions: str = ""
    #: Folder of SIF files; empty: one in the state directory of the node.
    cache: str = ""
    cache_mode: CacheMode = CacheMode.VERSIONED
    #: Environments of one image that start at once.
    starts: int = 2
    #: Longest time of one build.
    build_seconds: float = 3600.0
    #: Limit of all SIF files in the cache; 0: half of its file system in the node's own folder, none in a named one.
    cache_bytes: float = 0.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ApptainerSettings:
        """Parse the node's settings. Raises InvalidRequest that names a wrong one."""
        mine = {
            name.removeprefix(PREFIX): text
            for name, text in given.items()
            if name.startswith(PREFIX) and text
        }
        if unknown := sorted(mine.keys() - cls.__dataclass_fields__.keys()):
            known = ", ".join(f"{PREFIX}{name}" for name in cls.__dataclass_fields__)
            raise InvalidRequest(f"{PREFIX}{unknown[0]} is no setting: there are {known}")
        if mine.get("cache_mode", CacheMode.VERSIONED) not in list(CacheMode):
            raise InvalidRequest(f"{PREFIX}cache_mode is one of {', '.join(CacheMode)}")
        return cls(
            mine.get("program", ""),
            _folder("definitions", mine),
            _folder("cache", mine),
            CacheMode(mine.get("cache_mode", CacheMode.VERSIONED)),
            int(_number("starts", mine, cls.starts)),
            _number("build_seconds", mine, cls.build_seconds),
            _number("cache_bytes", mine, cls.cache_bytes, least=0),
        )


def _number(name: str, mine: Mapping[str, str], default: float, least: float = 1) -> float:
    text = mine.get(name, "")
    try:
        found = float(text) if text else default
    except ValueError:
        found = -1.0
    if not least <= found < float("inf"):
        raise InvalidRequest(f"{PREFIX}{name} is {text!r}: give a number from {least:g} up")
    return found


def _folder(name: str, mine: Mapping[str, str]) -> str:
    path = mine.get(name, "")
    if path and not Path(path).is_absolute():
        raise InvalidRequest(f"{PREFIX}{name} is {path!r}: give an absolute path")
    return path
