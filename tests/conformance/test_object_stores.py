"""A folder and S3 obey the rules of object stores; S3 is played by a server on loopback."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from domain.errors import InvalidRequest, StorageFull, Unavailable
from scheduler.runtime.object_store.contents import keep_made
from scheduler.runtime.object_store.folder_objects import FolderObjects
from scheduler.runtime.object_store.objects import (
    FILES,
    BucketAddress,
    ObjectFacts,
    ObjectStore,
    object_key,
)
from scheduler.runtime.object_store.s3_objects import S3Objects
from scheduler.runtime.object_store.store_address import open_store
from tests.conformance.object_store import (
    BUCKET,
    LARGE,
    SMALL,
    ObjectStoreConformance,
    key_of,
    pieces,
    s3_server,
    store_whole,
    whole,
)


class TestFolder(ObjectStoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        self._folder = tmp_path / "objects"
        found = open_store(f"file://{self._folder}")
        assert isinstance(found, FolderObjects)
        return found

    async def damage(self, store: ObjectStore, key: str, content: bytes) -> None:
        (self._folder / key).write_bytes(content)

    def traces(self) -> list[str]:
        return [str(path) for path in self._folder.rglob("*") if path.is_file()]

    async def test_a_folder_that_is_none_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        store = FolderObjects(tmp_path / "file")
        with pytest.raises(Unavailable, match=r"TANGRAM_OBJECT_STORE=file://.*mount the folder"):
            await store_whole(store, SMALL)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")


class TestS3(ObjectStoreConformance):
    @pytest.fixture
    def store(self, s3: str, request: pytest.FixtureRequest) -> ObjectStore:
        self._s3 = s3
        self._prefix = re.sub(r"\W+", "-", request.node.name)
        found = open_store(f"s3://{BUCKET}/{self._prefix}?endpoint={s3}")
        assert isinstance(found, S3Objects)
        return found

    async def damage(self, store: ObjectStore, key: str, content: bytes) -> None:
        url = await store.upload_url(key, 60)
        assert url is not None
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            (await client.put(url, content=content)).raise_for_status()

    def traces(self) -> list[str]:
        """Ask the server, which lists to anyone."""
        lists = (f"?prefix={self._prefix}/", "?uploads")
        answers = [
            httpx.get(f"{self._s3}/{BUCKET}{each}", timeout=60, trust_env=False) for each in lists
        ]
        return re.findall("<Key>(.*?)</Key>", "".join(each.text for each in answers))

    async def test_signed_urls_need_no_credentials(self, store: ObjectStore) -> None:
        key = key_of(SMALL)
        upload = await store.upload_url(key, 60)
        download = await store.download_url(key, 60)
        assert upload is not None
        assert download is not None
        async with httpx.AsyncClient(trust_env=False) as client:
            put = await client.put(upload, content=SMALL)
            got = await client.get(download)

        assert (put.status_code, got.content) == (200, SMALL)
        assert await whole(store, key) == SMALL
        assert "X-Amz-Expires=60" in upload

    async def test_a_missing_bucket_is_named(self, s3: str) -> None:
        store = S3Objects(BucketAddress("no-such-bucket", "", s3, ""))
        with pytest.raises(Unavailable, match="no-such-bucket does not exist: make it"):
            await store_whole(store, SMALL)


class AnsweringServer:
    """A server that answers requests with the given statuses and codes, then with success."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        left, self.requests = list(answers), list[str]()
        owner = self

        class Answering(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                owner.requests.append(self.path)
                self.rfile.read(int(self.headers.get("content-length", "0")))
                status, code = left.pop(0) if left else (200, "")
                body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
                self.send_response(status)
                self.send_header("etag", '"1"')
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "cure"),
    [
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        (403, "RequestTimeTooSkewed", "time server"),
        (403, "AccessDenied", "docs/security.md"),
        (404, "NoSuchBucket", "make it, or correct the name"),
    ],
)
async def test_a_refusal_names_its_cure(status: int, code: str, cure: str) -> None:
    with AnsweringServer((status, code)) as url:
        store = S3Objects(BucketAddress(BUCKET, "", url, ""))
        with pytest.raises(Unavailable, match=cure) as raised:
            await store_whole(store, SMALL)
    assert "TANGRAM_OBJECT_STORE" in str(raised.value)


async def test_a_full_store_is_said_to_be_full() -> None:
    with AnsweringServer((507, "XMinioStorageFull")) as url:
        store = S3Objects(BucketAddress(BUCKET, "", url, ""), retries=0)
        with pytest.raises(StorageFull, match="make space"):
            await store_whole(store, SMALL)


async def test_a_request_is_repeated_while_the_server_is_busy() -> None:
    server = AnsweringServer((503, "SlowDown"), (500, "InternalError"))
    with server as url:
        await store_whole(S3Objects(BucketAddress(BUCKET, "", url, "")), SMALL)
    assert server.requests == [f"/{BUCKET}/{key_of(SMALL)}"] * 3


async def test_an_endpoint_that_does_not_answer_is_named() -> None:
    with AnsweringServer() as url:
        pass
    store = S3Objects(BucketAddress(BUCKET, "", url, ""), retries=0)
    with pytest.raises(Unavailable, match=f"{url} does not answer: check endpoint="):
        await store_whole(store, LARGE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s3://key:secret@bucket", "AWS_ACCESS_KEY_ID"),
        ("s3://Bucket_1", "no name of a bucket"),
        ("s3://bucket?endpont=http://a", "endpont is unknown"),
        ("s3://bucket?endpoint=a:9000", "no URL"),
        ("/folder", "no address"),
        ("file://host/folder", "no address"),
    ],
)
def test_an_address_that_is_wrong_names_its_form(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"TANGRAM_OBJECT_STORE.*{why}"):
        open_store(text)


async def test_a_part_that_may_not_list_puts_what_it_is_refused_to_look_at(tmp_path: Path) -> None:
    """S3 answers 403 for an object that is not there, without the right to list."""

    class Unlisted(FolderObjects):
        async def head(self, key: str) -> ObjectFacts | None:
            raise Unavailable("its credentials do not permit this")

    store = Unlisted(tmp_path)
    for _ in range(2):
        await keep_made(store, FILES, "p1", lambda: pieces(SMALL))
    assert await whole(FolderObjects(tmp_path), key_of(SMALL)) == SMALL


def test_no_address_is_no_store() -> None:
    assert open_store("") is None


def test_keys_of_projects_differ_and_stay_below_their_area() -> None:
    digest = "0" * 64
    keys = {object_key("files", name, digest) for name in ("a", "A", "..", "a/b", "ä", "x.1")}

    assert len(keys) == 6
    assert all(re.fullmatch(r"files/[A-Za-z0-9._-]+/0{64}", key) for key in keys)
    with pytest.raises(InvalidRequest, match="sha256"):
        object_key("files", "a", "../../etc")
