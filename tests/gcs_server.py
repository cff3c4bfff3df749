"""A server on loopback that speaks the XML API of Google Cloud Storage: objects, ranges, conditions, lists, uploads.

There is no such server among the packages that tests may install: the emulators there know the JSON API, or read only.
It was written from the documentation of the API, and answers what it does not know with 501.
"""

import hashlib
import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from flaky_server import LoopbackHandler, LoopbackServer

_DATE = "Mon, 16 Nov 2026 12:00:00 GMT"
_PAGE = 1000


class GcsServer(LoopbackServer):
    """Holds buckets in memory. A `token` is what writes must bear; None takes any."""

    def __init__(self, *buckets: str, token: str | None = None) -> None:
        self.buckets: dict[str, dict[str, bytes]] = {name: {} for name in buckets or ("bucket",)}
        self.token = token
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.requests: list[tuple[str, str]] = []
        """Method and path of each."""
        self.tokens: set[str | None] = set()
        """What requests had as authorization."""
        super().__init__(_Handler)

    @property
    def host(self) -> str:
        """The value of STORAGE_EMULATOR_HOST."""
        return f"127.0.0.1:{self.port}"


class _Handler(LoopbackHandler):
    server: GcsServer

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        name, _, key = unquote(parts.path[1:]).partition("/")
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            self.server.requests.append((self.command, self.path))
            self.server.tokens.add(self.headers.get("Authorization"))
            bucket = self.server.buckets.get(name)
            if bucket is None:
                self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            elif self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
                self._answer(401, b"<Error><Code>AuthenticationRequired</Code></Error>")
            elif not key and self.command == "GET" and "list-type" in query:
                self._list(bucket, query)
            elif key and self.command in ("GET", "HEAD"):
                self._get(bucket, key)
            elif key and self.command == "PUT" and "uploadId" in query:
                self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
                self._answer(200, etag=body)
            elif key and self.command == "PUT":
                if self.headers.get("x-goog-if-generation-match") == "0" and key in bucket:
                    self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                    return
                bucket[key] = body
                self._answer(200, etag=body)
            elif key and self.command == "POST" and "uploads" in query:
                upload = f"upload-{len(self.server.uploads)}"
                self.server.uploads[upload] = {}
                self._answer(200, f"<R><Bucket>{name}</Bucket><Key>k</Key><UploadId>{upload}</UploadId></R>".encode())
            elif key and self.command == "POST" and "uploadId" in query:
                found = self.server.uploads.pop(query["uploadId"])
                bucket[key] = b"".join(found[number] for number in sorted(found))
                tag = hashlib.md5(bucket[key]).hexdigest()
                self._answer(200, f"<R><ETag>{tag}</ETag></R>".encode())
            elif key and self.command == "DELETE":
                found_here = bucket.pop(key, None) is not None
                self._answer(204 if found_here else 404)
            else:
                self._answer(501)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

    def _get(self, bucket: dict[str, bytes], key: str) -> None:
        if key not in bucket:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        data = bucket[key]
        if (wanted := self.headers.get("If-Match")) and wanted != f'"{hashlib.md5(data).hexdigest()}"':
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            self._answer(200, data, etag=data)
        elif (start := int(asked[1])) >= len(data):
            self._answer(416, headers={"Content-Range": f"bytes */{len(data)}"})
        else:
            stop = min(len(data), int(asked[2]) + 1 if asked[2] else len(data))
            self._answer(
                206, data[start:stop], etag=data, headers={"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
            )

    def _list(self, bucket: dict[str, bytes], query: dict[str, str]) -> None:
        prefix, delimiter, after = query.get("prefix", ""), query.get("delimiter"), query.get("continuation-token", "")
        contents: list[str] = []
        folders: dict[str, None] = {}
        last = None
        for key in sorted(each for each in bucket if each.startswith(prefix) and each > after):
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders[prefix + rest.partition(delimiter)[0] + delimiter] = None
                continue
            tag = hashlib.md5(bucket[key]).hexdigest()
            fields = f"<Key>{escape(key)}</Key><Size>{len(bucket[key])}</Size><ETag>&quot;{tag}&quot;</ETag>"
            contents.append(f"<Contents>{fields}<LastModified>2026-11-16T12:00:00.000Z</LastModified></Contents>")
            if len(contents) + len(folders) == _PAGE:
                last = key
                break
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders)
        more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if last else ""
        truncated = f"<IsTruncated>{'true' if last else 'false'}</IsTruncated>"
        self._answer(
            200, f"<ListBucketResult>{truncated}{more}{''.join(contents)}{prefixes}</ListBucketResult>".encode()
        )

    def _answer(self, status: int, body: bytes = b"", *, etag: bytes | None = None, headers: Any = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if etag is not None:
            self.send_header("ETag", f'"{hashlib.md5(etag).hexdigest()}"')
            self.send_header("x-goog-generation", "1")
            self.send_header("Last-Modified", _DATE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
