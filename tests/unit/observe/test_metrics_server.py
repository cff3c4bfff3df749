"""What Prometheus sees."""

import gc
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

import tokenfeed
from tokenfeed import observe
from tokenfeed.errors import AddressInUseError, ArgumentError


def make_loader(path, **options):
    return tokenfeed.Loader(tokenfeed.open(path).windows(16), 4, **{"rank": 2, "world_size": 4, **options})


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_counters_as_they_are_now(store_path):
    loader = make_loader(store_path)
    with observe.serve_metrics(loader) as server:
        kind, text = get(server.url)
        assert kind.startswith("application/openmetrics-text; version=1.0.0")
        assert 'tokenfeed_batches_total{rank="2"} 0.0' in text
        next(loader)
        assert 'tokenfeed_batches_total{rank="2"} 1.0' in get(server.url)[1]
        assert get(server.url)[1].endswith("# EOF\n")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(server.url + "/else")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("POST", "/metrics", b"x")
        assert connection.getresponse().status == 501
        connection.close()
    with pytest.raises(urllib.error.URLError):
        get(server.url)
    server.close()
    loader.close()


def test_only_this_machine_can_ask(store_path):
    loader = make_loader(store_path)
    with observe.serve_metrics(loader) as server:
        assert server._server.server_address[0] == "127.0.0.1"
    loader.close()


def test_a_client_that_says_nothing_keeps_nobody_waiting(store_path):
    loader = make_loader(store_path)
    with observe.serve_metrics(loader) as server, socket.create_connection(("127.0.0.1", server.port)):
        assert get(server.url)[1]
        server.close()
    loader.close()


def test_it_ends_with_its_loader(store_path):
    loader = make_loader(store_path)
    server = observe.serve_metrics(loader)
    url = server.url
    loader.close()
    del loader
    gc.collect()
    deadline = time.monotonic() + 60
    while any(thread.name == "tokenfeed-metrics" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with pytest.raises(urllib.error.URLError):
        get(url)


def test_it_can_be_closed_by_the_thread_that_serves(store_path):
    """Which is where a loader may happen to be collected."""
    loader = make_loader(store_path)
    server = observe.serve_metrics(loader)
    server._server.handle_timeout = server.close
    deadline = time.monotonic() + 60
    while server._thread.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    loader.close()


def test_what_cannot_be(store_path):
    loader = make_loader(store_path)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(AddressInUseError, match=r"in use by another process.*port 0"),
    ):
        observe.serve_metrics(loader, taken.getsockname()[1])
    with pytest.raises(ArgumentError, match="port 99999"):
        observe.serve_metrics(loader, 99999)
    with pytest.raises(ArgumentError, match="label"):
        observe.serve_metrics(loader, labels={"a b": "c"})
    loader.close()
