"""Failures that have a name: missing buckets and objects, clocks, regions, certificates; and those that pass."""

import pytest

from flaky_server import FlakyServer, Status
from servers import tls_server
from tokenfeed.errors import NotFoundError, ReadError
from tokenfeed.storage import objects
from tokenfeed.storage.fetcher import fetcher


def error(code: str, more: str = "") -> bytes:
    return f"<Error><Code>{code}</Code><Message>secret=hidden</Message>{more}</Error>".encode()


@pytest.fixture
def server(monkeypatch):
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("TOKENFEED_TIMEOUT", "8")
    with FlakyServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url("").rstrip("/"))
        yield server


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (404, error("NoSuchBucket"), NotFoundError, "there is no such bucket"),
        (403, error("RequestTimeTooSkewed"), ReadError, r"clock of this machine.*\. Set the clock"),
        (
            400,
            error("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"),
            ReadError,
            "Set AWS_REGION=eu-west-1",
        ),
        (403, error("AccessDenied", "<Region>eu-west-1</Region>"), ReadError, "Credentials are missing"),
    ],
)
def test_what_it_is_told_as(server, status, body, kind, message):
    server.put("/bucket/a", b"data", Status(status, body=body), ...)
    with pytest.raises(kind, match=message) as caught:
        objects.read("s3://bucket/a")
    assert "hidden" not in str(caught.value)
    assert len(server.asked("/bucket/a")) == 1


@pytest.mark.parametrize(
    "fault",
    [Status(400, body=error("RequestTimeout")), Status(522), Status(524), Status(529)],
    ids=lambda one: str(one.status),
)
def test_what_passes_is_tried_again(server, fault):
    server.put("/bucket/a", b"data", fault, fault)
    assert objects.read("s3://bucket/a") == b"data"
    assert len(server.asked("/bucket/a")) == 3


def test_certificates(server, tmp_path, monkeypatch):
    with tls_server(tmp_path) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for uri in ("s3://bucket/a", f"{url}/a"):
            with pytest.raises(ReadError, match=r"certificate is not trusted \(UnknownIssuer\)\. Set SSL_CERT_FILE"):
                objects.read(uri)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        assert objects.read("s3://bucket/a") == b"data"


def test_https_to_a_port_that_speaks_http_is_told_at_once(server, monkeypatch):
    endpoint = server.url("").rstrip("/").replace("http://", "https://")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    for uri in ("s3://bucket/a", f"{endpoint}/a"):
        before = fetcher().counters.retries
        words = r"the server does not speak https\. Begin the address, or the endpoint, with http://$"
        with pytest.raises(ReadError, match=words):
            objects.read(uri)
        assert fetcher().counters.retries == before


def test_a_connection_string_of_azure(server, monkeypatch):
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    endpoint = server.url("").rstrip("/")
    text = f"DefaultEndpointsProtocol=http;AccountName=me;AccountKey=c2VjcmV0;BlobEndpoint={endpoint}/me"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    server.put("/me/box/a", b"data", headers={"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"})
    assert objects.read("az://box/a") == b"data"
    assert server.asked("/me/box/a")[0].headers["Authorization"].startswith("SharedKey me:")
