"""A server on loopback that speaks the protocol of the Hugging Face hub, as far as datasets need it.

Repositories are made, files come in by LFS or within a commit, and go out by redirects to signed addresses, as there.
huggingface_hub is the client on one side, and obstore on the other.
"""

import base64
import hashlib
import json
import re
from urllib.parse import parse_qs, unquote, urlsplit

from flaky_server import LoopbackHandler, LoopbackServer

REGULAR_BYTES = 1000
"""Files that are larger go by LFS."""


class HubServer(LoopbackServer):
    def __init__(self, token: str) -> None:
        self.token = token
        self.objects: dict[str, bytes] = {}
        """Content by SHA-256."""
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        """Files by repository and commit; `main` is the newest."""
        self.requests: list[tuple[str, str, str | None]] = []
        """(method, path, Range) of every request."""
        super().__init__(_Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage(self) -> str:
        """Another server, as far as a client can tell: the token must not go there."""
        return f"http://localhost:{self.port}"

    def commit(self, repository: str, files: dict[str, bytes]) -> str:
        """A new commit with more files. Returns its name."""
        commits = self.repositories.setdefault(repository, {"main": {}})
        whole = {**commits["main"], **files}
        name = hashlib.sha1(repr(sorted(whole.items())).encode()).hexdigest()
        commits[name] = commits["main"] = whole
        self.objects |= {hashlib.sha256(data).hexdigest(): data for data in files.values()}
        return name

    def newest(self, repository: str) -> str:
        commits = self.repositories[repository]
        return next(name for name in reversed(commits) if name != "main" and commits[name] is commits["main"])


class _Handler(LoopbackHandler):
    server: HubServer

    def answer(self, status: int, body: object = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.server.requests.append((self.command, path, self.headers.get("Range")))
        if path.startswith("/cdn/"):
            if self.headers.get("Authorization"):
                return self.answer(400, b"the token went to another server")
            return self.serve(path.removeprefix("/cdn/"), body)
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self.answer(401, {"error": "Invalid username or password."})
        for pattern, method in (
            (r"/api/repos/create", self.create),
            (r"/api/datasets/([^/]+/[^/]+)/revision/([^/]+)", self.revision),
            (r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)(/.*)?", self.tree),
            (r"/api/datasets/([^/]+/[^/]+)/preupload/([^/]+)", self.preupload),
            (r"/api/datasets/([^/]+/[^/]+)/commit/([^/]+)", self.commit),
            (r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch", self.batch),
            (r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.resolve),
        ):
            if match := re.fullmatch(pattern, path):
                return method(body, *match.groups())
        return self.answer(404, {"error": f"no {path}"}, X_Error_Code="RepoNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = handle_any  # noqa: N815

    def files(self, repository: str, revision: str) -> dict[str, bytes] | None:
        return self.server.repositories.get(repository, {}).get(revision)

    def missing(self) -> None:
        self.answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        if name in self.server.repositories:
            return self.answer(409, {"url": f"{self.server.url}/datasets/{name}"})
        self.server.repositories[name] = {"main": {}}
        return self.answer(200, {"url": f"{self.server.url}/datasets/{name}"})

    def revision(self, _: bytes, repository: str, revision: str) -> None:
        if self.files(repository, revision) is None:
            return self.missing()
        sha = self.server.newest(repository) if revision == "main" else revision
        return self.answer(200, {"id": repository, "sha": sha, "siblings": []})

    def tree(self, _: bytes, repository: str, revision: str, folder: str | None) -> None:
        files = self.files(repository, revision)
        if files is None:
            return self.missing()
        within = (folder or "").strip("/")
        entries = [
            {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            for path, data in files.items()
            if not within or path.startswith(f"{within}/")
        ]
        return self.answer(200, entries)

    def preupload(self, body: bytes, repository: str, _: str) -> None:
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] > REGULAR_BYTES else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for file in json.loads(body)["files"]
        ]
        self.answer(200, {"files": modes}) if repository in self.server.repositories else self.missing()

    def batch(self, body: bytes, _: str) -> None:
        objects = []
        for each in json.loads(body)["objects"]:
            found = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in self.server.objects:
                found["actions"] = {"upload": {"href": f"{self.server.storage}/cdn/{each['oid']}?X-Signature=signed"}}
            objects.append(found)
        self.answer(200, {"transfer": "basic", "objects": objects})

    def commit(self, body: bytes, repository: str, _: str) -> None:
        files = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
        name = self.server.commit(repository, files)
        url = f"{self.server.url}/datasets/{repository}/commit/{name}"
        self.answer(200, {"success": True, "commitOid": name, "commitUrl": url, "hookOutput": ""})

    def resolve(self, _: bytes, repository: str, revision: str, path: str) -> None:
        data = (self.files(repository, revision) or {}).get(path)
        if data is None:
            return self.answer(404, b"Entry not found", X_Error_Code="EntryNotFound")
        digest = hashlib.sha256(data).hexdigest()
        target = f"{self.server.storage}/cdn/{digest}?X-Signature=signed"
        linked = {"X_Linked_Etag": f'"{digest}"', "X_Linked_Size": str(len(data)), "X_Repo_Commit": revision}
        return self.answer(302, b"", Location=target, **linked)

    def serve(self, digest: str, body: bytes) -> None:
        if parse_qs(urlsplit(self.path).query).get("X-Signature") != ["signed"]:
            return self.answer(403)
        if self.command == "PUT":
            self.server.objects[hashlib.sha256(body).hexdigest()] = body
            return self.answer(200)
        data, etag = self.server.objects[digest], f'"{digest}"'
        if self.headers.get("If-Match", etag) != etag:
            return self.answer(412)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not match:
            return self.answer(200, data, ETag=etag, Accept_Ranges="bytes")
        start, stop = int(match[1]), min(len(data), int(match[2] or len(data)) + 1)
        span = f"bytes {start}-{stop - 1}/{len(data)}"
        return self.answer(206, data[start:stop], ETag=etag, Content_Range=span)
