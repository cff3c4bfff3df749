"""Servers that misbehave: what is tried again, what is an error, that nothing hangs, and that no secret is shown.

Each through a proxy before a real server: HTTP and S3.
"""

import io
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import uuid

import pytest

from servers import KEY, SECRET, Headers, Stall, Status, Truncate, behave, faulty_proxy, ignore_range, reset
from tiers import slow
from tokenfeed.errors import ArgumentError, CorruptionError, NotFoundError, ReadError, TokenfeedError, WriteError
from tokenfeed.storage import objects
from tokenfeed.storage.fetcher import Fetcher, Range, fetcher
from tokenfeed.storage.retries import Patience

DATA = bytes(range(256)) * 400
QUICK = Patience(total=10.0, connect=1.0, stall=1.0, first_pause=0.02, longest_pause=0.2)
BRIEF = Patience(total=1.5, connect=0.4, stall=0.4, first_pause=0.02, longest_pause=0.2)
BODY = b"<Error><Code>SlowDown</Code><Message>signature=hidden-in-the-body</Message></Error>"


def label(value):
    """The name of a parameter, the same in every process."""
    return getattr(value, "__name__", str(value))


class Road:
    """An object behind a proxy."""

    def __init__(self, proxy, uri):
        self.proxy = proxy
        self.uri = uri
        self.fetcher = Fetcher(patience=QUICK)

    def get(self, start=1000, stop=31_000, version=None):
        return bytes(self.fetcher.submit(Range(self.uri, start, stop, version)).result(30).data)


@pytest.fixture(params=["http", "s3"])
def road(request, monkeypatch):
    name = f"{uuid.uuid4().hex}.bin"
    s3 = request.getfixturevalue("s3_environment")
    monkeypatch.setenv("TOKENFEED_TIMEOUT", "6")
    if request.param == "http":
        folder, url = request.getfixturevalue("www")
        (folder / name).write_bytes(DATA)
        with faulty_proxy(url) as proxy:
            yield Road(proxy, f"{proxy.url}/{name}")
    else:
        objects.write(f"s3://bucket/{name}", DATA)
        with faulty_proxy(s3.url) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
            yield Road(proxy, f"s3://bucket/{name}")


def check_nothing_secret(error):
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    for secret in (SECRET, "hidden-in-the-body", "X-Amz-Signature", "Signature="):
        assert secret not in shown


@pytest.mark.parametrize(
    "fault",
    [
        Status(408),
        Status(409, body=BODY),
        Status(500, body=BODY),
        Status(502),
        Status(503, body=BODY),
        Status(504),
        Status(429, {"Retry-After": "1"}, BODY),
        Truncate(100),
        Truncate(0),
        Truncate(20_000, reset=True),
        Stall(),
        Stall(100),
        reset,
    ],
    ids=label,
)
def test_what_passes_is_tried_again(road, fault):
    road.get()  # so that the kind of server is known
    before = road.fetcher.counters.requests
    faults = [fault] if isinstance(fault, Stall) or getattr(fault, "status", 0) == 429 else [fault, fault]
    road.proxy.script(".bin", *faults, method="GET")
    assert road.get() == DATA[1000:31_000]
    counters = road.fetcher.counters
    assert (counters.requests - before, counters.retries) == (len(faults) + 1, len(faults))
    assert counters.bytes_fetched == 60_000
    if isinstance(fault, Status) and fault.status == 429:
        times = road.proxy.asked(".bin")[-2:]
        assert times[1] - times[0] >= 0.5


@pytest.mark.parametrize(
    ("fault", "number", "message"),
    [
        (Status(401, body=BODY), 13, "redentials"),
        (Status(403, body=BODY), 13, "redentials"),
        (Status(404, body=BODY), 2, "404"),
        (Status(416, body=BODY), 5, "shorter"),
        (Status(400, body=BODY), 5, "400"),
    ],
    ids=label,
)
def test_what_does_not_pass_is_an_error_at_once(road, fault, number, message):
    road.get()
    asked = len(road.proxy.asked(".bin"))
    road.proxy.script(".bin", fault, ..., method="GET")
    with pytest.raises((ReadError, NotFoundError), match=message) as caught:
        road.get()
    assert (caught.value.errno, caught.value.filename) == (number, road.uri)
    assert len(road.proxy.asked(".bin")) == asked + 1
    check_nothing_secret(caught.value)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Status(503, body=BODY), "503"),
        (Status(429, {"Retry-After": "100"}), "429"),
        (Truncate(10), "broke"),
        (Stall(10), "stalled"),
        (Stall(), "stalled"),
        (reset, "broke"),
    ],
    ids=label,
)
def test_what_never_passes_ends_within_the_limit(road, fault, message):
    road.fetcher = Fetcher(patience=BRIEF)
    road.get()
    road.proxy.script(".bin", fault, ..., method="GET")
    with pytest.raises(ReadError, match=rf"{message}.*tried \d+ times.*1\.5 s in all") as caught:
        road.get()
    check_nothing_secret(caught.value)


def test_another_range_than_was_asked_for(road):
    road.get()
    road.proxy.script(".bin", Headers({"Content-Range": f"bytes 0-29999/{len(DATA)}"}), method="GET")
    assert road.get() == DATA[1000:31_000]
    road.proxy.script(".bin", Headers({"Content-Range": f"bytes 0-29999/{len(DATA)}"}), ..., method="GET")
    with pytest.raises(ReadError, match="sent"):
        road.get()
    assert road.fetcher.counters.retries == 1 + 3


def test_a_server_that_ignores_ranges(road):
    road.proxy.script(".bin", ignore_range, ..., method="GET")
    with pytest.raises(ReadError, match=r"whole object where a part was asked for.*download"):
        road.get()
    assert road.fetcher.counters.retries == 0


def test_an_object_that_is_replaced(road):
    version = objects.head(road.uri).version
    assert road.get(version=version) == DATA[1000:31_000]
    road.proxy.script(".bin", Headers({"ETag": '"another"', "Etag": '"another"'}), method="GET")
    with pytest.raises(CorruptionError, match="replaced while it was being read"):
        road.get(version=version)
    road.proxy.script(".bin", Status(412, body=BODY), method="GET")
    with pytest.raises(CorruptionError, match="replaced while it was being read"):
        road.get(version=version)
    assert road.fetcher.counters.retries == 0


def test_a_burst_of_many_failures(road):
    """Two hundred ranges while every other answer is 503."""
    road.get()
    faults = [Status(503, body=BODY), road.proxy.normally] * 40
    road.proxy.script(".bin", *faults, method="GET")
    wanted = [Range(road.uri, start, start + 100) for start in range(0, 100_000, 500)]
    for one, answer in zip(wanted, road.fetcher.submit_all(wanted), strict=True):
        assert bytes(answer.result(20).data) == DATA[one.start : one.stop]
    assert road.fetcher.counters.retries == 40


def test_no_more_requests_at_once_than_allowed(road):
    road.proxy.latency = 0.05
    road.get()
    ours = Fetcher(concurrency=4, patience=QUICK)
    road.proxy.most_at_once = 0
    for answer in ours.submit_all([Range(road.uri, start, start + 1) for start in range(20)]):
        answer.result(10)
    assert road.proxy.most_at_once == 4


def test_whole_objects_and_headers_are_tried_again_too(road):
    road.proxy.script(".bin", Status(503), Truncate(100), Stall(50), method="GET")
    assert objects.read(road.uri) == DATA
    road.proxy.script(".bin", Status(500), reset, method="HEAD")
    assert objects.head(road.uri).size == len(DATA)


def test_writing_is_tried_again_and_fails_in_words(road, tmp_path):
    if road.uri.startswith("http"):
        with pytest.raises(ArgumentError, match="read-only"):
            objects.write(road.uri, DATA)
        assert road.proxy.requests == []
        return
    uri = f"{road.uri}.new.bin"
    road.proxy.script(".new.bin", Status(503, body=BODY), reset, method="PUT")
    assert objects.write(uri, DATA, create=True)
    assert objects.read(uri) == DATA
    road.proxy.script(".both.bin", Status(409, body=BODY), method="PUT")  # two write at once, and neither has yet
    assert objects.write(f"{road.uri}.both.bin", DATA, create=True)
    assert not objects.write(f"{road.uri}.both.bin", b"other", create=True)
    assert objects.read(f"{road.uri}.both.bin") == DATA
    road.proxy.script(".new.bin", Status(403, body=BODY), ..., method="PUT")
    with pytest.raises(WriteError, match="AWS_ACCESS_KEY_ID") as caught:
        objects.write(uri, b"")
    check_nothing_secret(caught.value)
    road.proxy.script("large.bin", Status(503), Status(500), method="PUT")  # two of its parts
    objects.upload(f"{road.uri}.large.bin", io.BytesIO(DATA * 200))
    assert objects.read(f"{road.uri}.large.bin") == DATA * 200


def test_a_server_that_is_not_there(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setenv("TOKENFEED_TIMEOUT", "4")
    with pytest.raises(ReadError, match=r"cannot be reached.*within 1 s.*endpoint") as caught:
        objects.read(f"http://127.0.0.1:{port}/manifest.json")
    assert caught.value.errno == 113
    with pytest.raises(ReadError, match="name of the server is not known"):
        objects.read("http://no-such-host.invalid/manifest.json")


def test_credentials_that_are_missing_or_wrong(s3_environment, monkeypatch, tmp_path):
    objects.write("s3://bucket/locked", b"x")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    for key in (KEY, "nobody"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        with pytest.raises(ReadError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as caught:
            objects.read("s3://bucket/locked")
        assert caught.value.errno == 13
        assert "not-the-secret" not in str(caught.value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(ArgumentError, match="AWS_ACCESS_KEY_ID"):
        objects.read("s3://bucket/locked")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ReadError, match="AWS_ACCESS_KEY_ID"):
        objects.read("s3://bucket/locked")


def test_secrets_in_an_address_are_sent_and_never_shown(www):
    folder, url = www
    (folder / "signed.bin").write_bytes(DATA)
    with faulty_proxy(url) as proxy:
        secret = f"{proxy.url}/signed.bin?X-Amz-Signature=secret-signature".replace(
            "http://", "http://user:secret-word@"
        )
        seen = []
        proxy.normally = lambda exchange: (seen.append((exchange.path, exchange.headers)), behave(exchange))[1]
        assert objects.read(secret) == DATA
        assert bytes(fetcher().submit(Range(secret, 5, 9)).result(10).data) == DATA[5:9]
        for path, headers in seen:
            assert path.endswith("?X-Amz-Signature=secret-signature")
            assert headers.get("authorization", headers.get("Authorization")) == "Basic dXNlcjpzZWNyZXQtd29yZA=="
        proxy.script("signed", Status(403, body=BODY), ...)
        for act in (objects.read, objects.head, lambda uri: fetcher().submit(Range(uri, 0, 1)).result(10)):
            with pytest.raises(TokenfeedError) as caught:
                act(secret)
            shown = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
            assert "secret-" not in shown
            assert caught.value.filename == f"{proxy.url}/signed.bin"


def test_addresses_that_are_signed_for_reading_alone(www):
    """Servers of such say 403 to a request for headers."""
    folder, url = www
    (folder / "get.bin").write_bytes(DATA)
    with faulty_proxy(url) as proxy:
        proxy.script("get.bin", Status(403), ..., method="HEAD")
        assert objects.head(f"{proxy.url}/get.bin") == objects.head(f"{url}/get.bin")


CODE = """
import sys, time
from tokenfeed.storage.fetcher import Range, fetcher
answers = fetcher().submit_all([Range(sys.argv[1], n, n + 1) for n in range(100)])
print("asked", flush=True)
if sys.argv[2] == "wait":
    answers[0].result()
time.sleep(0.3)
"""


@pytest.mark.parametrize("end", ["wait", *slow("exit")])
def test_an_interrupt_and_an_exit_do_not_wait_for_a_server(road, end):
    road.get()
    road.proxy.script(".bin", Stall(), ..., method="GET")
    command = [sys.executable, "-W", "error", "-c", CODE, road.uri, end]
    environment = {**os.environ, "TOKENFEED_TIMEOUT": "60"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"asked\n"
        if end == "wait":
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        process.wait(40)
    assert process.returncode == (-signal.SIGINT if end == "wait" else 0), errors
    # obstore's threads may complain when the interpreter goes away under them; Python must not.
    assert (b"KeyboardInterrupt" in errors) == (end == "wait"), errors
    assert (b"Traceback" in errors) == (end == "wait"), errors
