"""What is sent with requests: headers, logins, certificates, regions; and what goes to no other server."""

import numpy as np
import pytest

import tokenfeed
from flaky_server import FlakyServer, Status
from servers import tls_server
from tokenfeed.errors import ArgumentError, ReadError, TokenfeedError
from tokenfeed.storage import objects
from tokenfeed.storage.address import remember


@pytest.fixture
def server(tmp_path):
    """A store under /store."""
    with tokenfeed.Writer(tmp_path / "store", columns={"tokens": "uint16"}, name="a") as writer:
        writer.append({"tokens": np.arange(1000)})
    with FlakyServer() as server:
        server.put_folder(tmp_path / "store", "/store")
        yield server


def test_headers_come_with_every_request_and_are_shown_nowhere(server):
    remote = tokenfeed.Remote(headers={"Authorization": "Bearer hidden", "X-Team": "hidden"})
    store = tokenfeed.open(server.url("/store"), remote=remote)
    assert store.windows(64)[3].tokens[0] == 192
    assert len(server.requests) >= 2
    for request in server.requests:
        assert (request.headers["Authorization"], request.headers["X-Team"]) == ("Bearer hidden", "hidden")
    assert "hidden" not in f"{remote!r} {store!r} {store.paths} {store.windows(64)!r}"
    for headers in ({"a b": "hidden"}, {"a": "hidden\r\nb: c"}, {"a": 1}):
        with pytest.raises(ArgumentError, match="header") as caught:
            tokenfeed.Remote(headers=headers)
        assert "hidden" not in str(caught.value)


def test_certificates_of_a_private_authority(tmp_path):
    (tmp_path / "tls").mkdir()
    with tls_server(tmp_path / "tls") as url:
        remote = tokenfeed.Remote(ca=tmp_path / "tls" / "ca.pem")
        with pytest.raises(ReadError, match="not trusted"):
            tokenfeed.open(f"{url}/store")
        with pytest.raises(TokenfeedError, match=r"JSON|manifest"):  # it answers everything with "data"
            tokenfeed.open(f"{url}/store", remote=remote)


def test_a_redirect_to_another_host_takes_no_login_along(server):
    """Authorization and cookies stay behind. Other headers go along, and so does the query, as Referer: SECURITY.md."""
    server.put("/data", b"data")
    with FlakyServer() as other:
        other.put("/data", b"", Status(302, {"Location": server.url("/data")}), ...)
        remember(other.url("/data"), {"authorization": "Bearer hidden", "cookie": "a=hidden"})
        assert objects.read(other.url("/data")) == b"data"
        assert objects.read(other.url("/data", login="me:hidden")) == b"data"
    for request in server.asked("/data"):
        assert "hidden" not in str(request.headers)


def test_the_region_of_a_bucket_is_found(monkeypatch, tmp_path):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with FlakyServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url("").rstrip("/"))
        body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>"
        server.put("/region-box/a", b"data", Status(400, body=body))
        assert objects.read("s3://region-box/a") == b"data"
        first, second = server.asked("/region-box/a")
        assert "/us-east-1/s3/" in first.headers["Authorization"]
        assert "/eu-west-3/s3/" in second.headers["Authorization"]
        assert objects.read("s3://region-box/a") == b"data"
        assert len(server.asked("/region-box/a")) == 3
