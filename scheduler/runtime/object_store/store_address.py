"""Address of the object store: the text of ``TANGRAM_OBJECT_STORE``, and the store that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from domain.errors import InvalidRequest
from scheduler.runtime.object_store.folder_objects import FolderObjects
from scheduler.runtime.object_store.objects import SETTING, BucketAddress, ObjectStore

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FORM: Final = "s3://BUCKET/PREFIX?endpoint=URL&region=NAME, or file:///FOLDER"


def parse_bucket(text: str) -> BucketAddress:
    """Return the bucket of an address ``s3://…``. Raises InvalidRequest."""
    parts = urlsplit(text)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    endpoint, region = given.pop("endpoint", ""), given.pop("region", "")
    if parts.username or parts.password:
        raise _wrong(
            "it holds credentials: give them in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if given:
        raise _wrong(f"{', '.join(sorted(given))} is unknown: it has endpoint and region")
    if not _BUCKET.fullmatch(parts.netloc):
        raise _wrong(f"{parts.netloc!r} is no name of a bucket")
    if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or "@" in endpoint):
        raise _wrong(f"endpoint={endpoint!r} is no URL as https://HOST:PORT")
    return BucketAddress(parts.netloc, parts.path.strip("/"), endpoint.rstrip("/"), region)


def open_store(text: str) -> ObjectStore | None:
    """Return the store of an address; None for an empty one. It is not asked for anything yet.

    Raises InvalidRequest for what is no address, and without the library for S3.
    """
    if not text:
        return None
    if text.startswith("s3://"):
        address = parse_bucket(text)
        try:
            from scheduler.runtime.object_store.s3_objects import S3Objects
        except ImportError:
            raise _wrong(
                "S3 needs the package obstore: install requirements/s3.lock, or tangram[s3]"
            ) from None
        return S3Objects(address)
    folder = urlsplit(text)
    if folder.scheme == "file" and not folder.netloc and folder.path.strip("/"):
        return FolderObjects(Path(folder.path))
    raise _wrong(f"{text[:80]!r} is no address")


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(f"{SETTING}: {what}; it is {_FORM}", pointer=SETTING)
