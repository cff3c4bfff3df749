"""The HTTP client of downloads: single requests, with redirects, credentials, and no secret in any message."""

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationValueError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from tokenfeed.errors import DownloadError
from tokenfeed.text.download.retries import TRANSIENT, Attempts, Interrupted, Policy, Stopped
from tokenfeed.text.download.secrets import Secrets, origin, public_url

__all__ = ["Answer", "Client"]

_MOST_REDIRECTS = 10
_SLOWEST = 1000  # bytes a second
_CHUNK_BYTES = 1 << 18
_QUOTED_BYTES = 200
_LARGEST_JSON = 64 << 20


class Client:
    """One pool of connections for all workers.

    `token` goes to `token_url`'s host and to no other, and user and password in an address to that address's host; when
    a server redirects elsewhere they stay behind. No message shows any of them, nor the query of any address. Proxies
    are those of the environment (http_proxy, https_proxy, no_proxy).
    """

    def __init__(
        self,
        *,
        workers: int = 4,
        timeout: float = 30.0,
        retries: int = 5,
        backoff: float = 1.0,
        token: str | None = None,
        token_url: str = "",
    ) -> None:
        self.timeout = timeout
        self.retries = retries
        self.stopping = threading.Event()
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._workers = workers
        self._policy = Policy.make(retries, backoff, self.stopping)
        self._token, self._token_origin = token, origin(token_url)
        self._secrets = Secrets()
        self._secrets.add(token or "")
        self._open: set[urllib3.BaseHTTPResponse] = set()
        self._lock = threading.Lock()

    def attempts(self, url: str) -> Attempts:
        return Attempts(self._policy, public_url(url))

    @contextlib.contextmanager
    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator["Answer"]:
        """One attempt, redirects followed. The status is 200, 206 or 416.

        Raises Interrupted for what may pass, DownloadError for what will not: a 404 is final.
        """
        response, linked = self._follow(url, headers or {})
        with self._lock:
            self._open.add(response)
        try:
            if self.stopping.is_set():
                raise Stopped
            answer = Answer(self, url, response, linked)
            answer.check_status()
            yield answer
        finally:
            with self._lock:
                self._open.discard(response)
            if response.connection is not None:  # else the body was read to its end, and the connection can serve again
                response.close()

    def get_json(self, url: str) -> tuple[Any, Mapping[str, str]]:
        """A JSON document and the headers it came with, after as many attempts as it takes."""
        attempts = self.attempts(url)
        while True:
            try:
                with self.get(url) as answer:
                    body = b"".join(self._bounded(answer.chunks(), url))
                break
            except Interrupted as interrupted:
                attempts.again(interrupted)
        try:
            return json.loads(body), answer.headers
        except (ValueError, RecursionError):
            raise DownloadError(f"{public_url(url)}: expected JSON, got {self.quote(body)}") from None

    @staticmethod
    def _bounded(chunks: Iterator[bytes], url: str) -> Iterator[bytes]:
        """The chunks of a document that is to be held in memory."""
        num_bytes = 0
        for chunk in chunks:
            num_bytes += len(chunk)
            if num_bytes > _LARGEST_JSON:
                raise DownloadError(f"{public_url(url)}: more than {_LARGEST_JSON:,} bytes of JSON; no list is so long")
            yield chunk

    def stop(self) -> None:
        """Make every worker raise Stopped soon: waits end, and bodies that are being read end here."""
        self.stopping.set()
        with self._lock:
            for response in self._open:
                with contextlib.suppress(OSError, ValueError, RuntimeError):  # it may have ended by itself just now
                    response.shutdown()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.clear()

    def quote(self, data: bytes) -> str:
        """The beginning of what a server sent, fit to be shown."""
        text = self._secrets.scrub(data[: 10 * _QUOTED_BYTES].decode("utf-8", "replace"))
        return repr(text[:_QUOTED_BYTES]) + (" …" if len(text) > _QUOTED_BYTES else "")

    def describe(self, error: HTTPError) -> str:
        if isinstance(error, ReadTimeoutError):
            return f"nothing came for {self.timeout:g} s"
        if isinstance(error, NameResolutionError):
            return "the name of the host is not known"
        if isinstance(error, ConnectTimeoutError) and not isinstance(error, NewConnectionError):  # its subclass
            return f"no connection within {self.timeout:g} s"
        return self._secrets.scrub(str(error))

    def _follow(self, url: str, headers: Mapping[str, str]) -> tuple[urllib3.BaseHTTPResponse, Mapping[str, str]]:
        """The answer at the end of the redirects, and the headers about the file that were given on the way there."""
        linked: dict[str, str] = {}
        first = url
        for _ in range(_MOST_REDIRECTS):
            self._secrets.add_url(url)
            response = self._send(url, headers)
            target = response.get_redirect_location()
            if not target:
                return response, linked
            linked |= {name.lower(): value for name, value in response.headers.items()}
            response.close()
            before = url
            try:
                url = urljoin(url, target)
            except ValueError:
                raise DownloadError(f"{public_url(first)}: redirected to what is no address") from None
            if before.startswith("https:") and not url.startswith("https:"):
                raise DownloadError(f"{public_url(first)}: redirected from https to {public_url(url)}; not followed")
        raise DownloadError(f"{public_url(first)}: redirected more than {_MOST_REDIRECTS} times")

    def _pool(self, url: str) -> urllib3.PoolManager:
        """The connections that lead to an address: direct ones, or through the proxy it asks for."""
        parts = urlsplit(url)
        proxy = getproxies().get(parts.scheme, "")
        if proxy_bypass(parts.netloc.rpartition("@")[2]):
            proxy = ""
        options: dict[str, Any] = {
            "maxsize": self._workers,
            "timeout": urllib3.Timeout(connect=self.timeout, read=self.timeout),
        }
        with self._lock:
            if proxy not in self._pools:
                self._secrets.add_url(proxy)
                login = urlsplit(proxy).netloc.rpartition("@")[0]
                headers = urllib3.make_headers(proxy_basic_auth=login) if login else None
                self._pools[proxy] = (
                    urllib3.ProxyManager(proxy, proxy_headers=headers, **options)
                    if proxy
                    else urllib3.PoolManager(**options)
                )
            return self._pools[proxy]

    def _send(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        parts = urlsplit(url)
        login, _, host = parts.netloc.rpartition("@")
        headers = {"User-Agent": "tokenfeed", "Accept-Encoding": "identity", **headers}
        if login:
            headers |= urllib3.make_headers(basic_auth=login)
        elif self._token and origin(url) == self._token_origin:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            return self._pool(url).request(
                "GET",
                urlunsplit((parts.scheme, host, parts.path, parts.query, "")),
                headers=headers,
                preload_content=False,
                decode_content=False,
                redirect=False,
                retries=False,  # `Attempts` counts them, together with those of bodies that break off
            )
        except HTTPError as error:
            reason = self.describe(error)
            certificate = isinstance(error, SSLError) and any(
                isinstance(part, ssl.SSLCertVerificationError) for part in error.args
            )
            if isinstance(error, LocationValueError) or certificate:
                raise DownloadError(f"{public_url(url)}: {reason}") from None
            raise Interrupted(reason) from None


class Answer:
    """A server's answer: status, headers, and a body that is read as it comes."""

    def __init__(self, client: Client, url: str, response: urllib3.BaseHTTPResponse, linked: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.linked = linked
        """Headers, in lower case, of the redirects that led here."""

    @property
    def length(self) -> int | None:
        """How many bytes the body promises to have."""
        return self._response.length_remaining

    @property
    def ends_visibly(self) -> bool:
        """Whether a body that breaks off can be told from one that ends."""
        return self.length is not None or "chunked" in self.headers.get("Transfer-Encoding", "").lower()

    def check_status(self) -> None:
        if self.status in (200, 206, 416):
            return
        what = f"the server answers {self.status} {self._response.reason or ''}".rstrip()
        if self.status in TRANSIENT:
            raise Interrupted(what, response=self._response)
        hint = ""
        if self.status in (401, 403):
            hint = ". For files of the Hugging Face hub that need a login, put a token into HF_TOKEN"
        elif self.status == 404:
            hint = ". There is no such file"
        raise DownloadError(f"{public_url(self._url)}: {what}{hint}") from None

    def beginning(self) -> str:
        """The first bytes of the body, to be shown."""
        with contextlib.suppress(Interrupted):
            for chunk in self.chunks():
                return self._client.quote(chunk)
        return "nothing"

    def chunks(self) -> Iterator[bytes]:
        """The body, in the pieces in which it comes, none larger than 256 KiB."""
        client, received, since = self._client, 0, time.monotonic()
        while True:
            try:
                chunk = self._response.read1(_CHUNK_BYTES)
            except HTTPError as error:
                if client.stopping.is_set():
                    raise Stopped from None
                raise Interrupted(client.describe(error)) from None
            if client.stopping.is_set():
                raise Stopped
            if not chunk:
                return
            yield chunk
            received += len(chunk)
            if (elapsed := time.monotonic() - since) > client.timeout:
                if received < _SLOWEST * elapsed:
                    raise Interrupted(f"only {received:,} bytes came in {elapsed:.1f} s")
                received, since = 0, time.monotonic()
