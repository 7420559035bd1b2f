"""Objects in a bucket of S3, or of a server that speaks its protocol, by obstore.

obstore signs, repeats requests with backoff, and takes credentials from ``AWS_*`` variables, the identity of a pod or that of the
machine. Beside it: content is checked before an upload is completed, uploads that end early are aborted, and errors name what to change.
A process that is killed leaves an upload that is never completed; the bucket's lifecycle deletes it (docs/operations.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from domain.errors import StorageFull, TangramError, Unavailable
from scheduler.runtime.object_store.objects import (
    PART_BYTES,
    SETTING,
    BucketAddress,
    ObjectFacts,
    checked,
    missing,
)

if TYPE_CHECKING:  # it is no name at run time
    from obstore.store import S3Config

#: S3 takes 10,000 parts of an upload.
_MOST_PARTS: Final = 9_000
#: Parts of one upload that are under way, all in memory.
_PARTS_AT_ONCE: Final = 3
#: Repeats of a request: after 0.1 s, then twice as long each time.
_RETRIES: Final = 6
_RETRY_SECONDS: Final = 90
_CONNECT_SECONDS: Final = 5
#: Longest wait for the abort of an upload: a worker that ends does not wait for a store that is away.
_ABORT_SECONDS: Final = 10
_REQUEST_SECONDS: Final = 120
#: What answers of servers say → what to do. The first that is found counts.
_CURES: Final = (
    ("NoSuchBucket", "the bucket {bucket} does not exist: make it, or correct the name"),
    ("InvalidAccessKeyId", "the key is unknown there: check AWS_ACCESS_KEY_ID of this part"),
    ("SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY of this part"),
    ("ExpiredToken", "the credentials of this part have expired"),
    ("RequestTimeTooSkewed", "the clock of this machine is wrong: let it follow a time server"),
    ("AccessDenied", "its credentials do not permit this: docs/security.md has the policy of each part"),
    ("403 Forbidden", "its credentials do not permit this: docs/security.md has the policy of each part"),
    ("error sending request", "{endpoint} does not answer: check endpoint= and the network"),
    ("301 Moved Permanently", "the bucket is in another region: give region="),
    ("AuthorizationHeaderMalformed", "the bucket is in another region: give region="),
)  # fmt: skip
_FULL: Final = ("XMinioStorageFull", "QuotaExceeded", "507 Insufficient", "InsufficientStorage")


class S3Objects:
    """`ObjectStore` in a bucket."""

    def __init__(self, address: BucketAddress, retries: int = _RETRIES) -> None:
        """``retries``: most repeats of one request."""
        self._address = address
        endpoint, region = address.endpoint, address.region or "us-east-1"
        config: S3Config = {"region": region}
        if endpoint:
            config["endpoint"] = endpoint
        self._store = S3Store(
            address.bucket,
            prefix=address.prefix or None,
            config=config,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "timeout": timedelta(seconds=_REQUEST_SECONDS),
                "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            },
            retry_config={
                "max_retries": retries,
                "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
            },
        )

    async def put(self, key: str, size_bytes: int, pieces: AsyncIterator[bytes]) -> None:
        """Store an object: a small one by one request, a larger one in parts that are completed after the check."""
        content = checked(key, pieces, size_bytes)
        with self._troubles(key):
            if size_bytes <= PART_BYTES:
                whole = b"".join([piece async for piece in content])
                await obstore.put_async(self._store, key, whole, use_multipart=False)
                return
            parts = _Handover()
            sending = asyncio.ensure_future(
                obstore.put_async(
                    self._store, key, parts, use_multipart=True, max_concurrency=_PARTS_AT_ONCE,
                    chunk_size=max(PART_BYTES, size_bytes // _MOST_PARTS),
                )
            )  # fmt: skip
            try:
                async for piece in content:
                    await parts.hand(piece, sending)
                await parts.hand(b"", sending)
                await asyncio.shield(sending)
            except BaseException:
                # The library aborts an upload when its source fails, and leaves one that is cancelled.
                parts.failed.set()
                if not (await asyncio.wait({sending}, timeout=_ABORT_SECONDS))[0]:
                    sending.cancel()
                elif not sending.cancelled():
                    sending.exception()
                raise

    async def get(
        self, key: str, *, first: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield an object, or a range of it, by one request for each part: each is repeated alone."""
        pieces = self._pieces(key, first, end)
        async for piece in pieces if first or end is not None else checked(key, pieces):
            yield piece

    async def _pieces(self, key: str, first: int, end: int | None) -> AsyncGenerator[bytes, None]:
        facts = await self.head(key)
        if facts is None:
            raise missing(key)
        end = facts.size_bytes if end is None else min(end, facts.size_bytes)
        while first < end:
            until = min(end, first + PART_BYTES)
            with self._troubles(key):
                piece = await obstore.get_range_async(self._store, key, start=first, end=until)
            yield bytes(piece)
            first = until

    async def head(self, key: str) -> ObjectFacts | None:
        """Return the facts of an object."""
        with self._troubles(key):
            try:
                found = await obstore.head_async(self._store, key)
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None
        return ObjectFacts(key, found["size"], found["last_modified"].timestamp())

    async def delete(self, key: str) -> None:
        """Delete an object."""
        with self._troubles(key):
            await obstore.delete_async(self._store, key)

    async def list(self, area: str) -> AsyncGenerator[ObjectFacts, None]:
        """Yield the objects of an area."""
        with self._troubles(area):
            async for page in obstore.list(self._store, f"{area}/"):
                for each in page:
                    yield ObjectFacts(each["path"], each["size"], each["last_modified"].timestamp())

    async def upload_url(self, key: str, seconds: float) -> str | None:
        """Return a signed URL for a PUT."""
        return await self._signed("PUT", key, seconds)

    async def download_url(self, key: str, seconds: float) -> str | None:
        """Return a signed URL for a GET."""
        return await self._signed("GET", key, seconds)

    async def _signed(self, method: Literal["GET", "PUT"], key: str, seconds: float) -> str:
        with self._troubles(key):
            return await obstore.sign_async(self._store, method, key, timedelta(seconds=seconds))

    @contextmanager
    def _troubles(self, key: str) -> Iterator[None]:
        """Raise what the library raises as errors that name the setting."""
        try:
            yield
        except TangramError:
            raise
        except (BaseError, FileNotFoundError, PermissionError) as error:
            text = str(error)
            where = f"{SETTING}=s3://{self._address.bucket}"
            if any(each in text for each in _FULL):
                raise StorageFull(f"{where} is full: make space there") from error
            for sign, cure in _CURES:
                if sign in text:
                    endpoint = self._address.endpoint or "AWS"
                    what = cure.format(bucket=self._address.bucket, endpoint=endpoint)
                    raise Unavailable(f"{where} cannot be used: {what}") from error
            if isinstance(error, FileNotFoundError):
                raise missing(key) from error
            raise Unavailable(
                f"{where} fails: {text.partition('Debug source')[0][:300].strip()}"
            ) from error


class _Handover:
    """Pieces from a coroutine to the library, one at a time; it ends by an empty one, or fails."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(1)
        self.failed = asyncio.Event()

    async def hand(self, piece: bytes, sending: asyncio.Future[Any]) -> None:
        """Wait until the piece is taken, or raise what ended the upload."""
        putting = asyncio.ensure_future(self._pieces.put(piece))
        try:
            await asyncio.wait({putting, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            putting.cancel()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        taking = asyncio.ensure_future(self._pieces.get())
        failing = asyncio.ensure_future(self.failed.wait())
        await asyncio.wait({taking, failing}, return_when=asyncio.FIRST_COMPLETED)
        failing.cancel()
        if self.failed.is_set():
            taking.cancel()
            raise Unavailable("the upload was broken off")
        if piece := taking.result():
            return piece
        raise StopAsyncIteration
