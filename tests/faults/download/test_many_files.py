"""Many files at once: their order, their list, and those that cannot be had."""

import threading
import time

import pytest

from downloads import contents, get, make_file, put_shards
from flaky_server import Break, Stall, behave
from tokenfeed.errors import ArgumentError
from tokenfeed.text.sources.finding import read_listing


def test_everything_arrives_in_order(server, tmp_path):
    data, address = put_shards(server, 6)
    done = get(address, tmp_path / "data", workers=1)
    assert done.ok
    assert contents(tmp_path / "data") == data
    assert [path.name for path in done.paths] == list(data)
    asked = [request.path for request in server.requests]
    assert asked == [f"/shard_{number}.parquet" for number in (0, 5, 1, 2, 3, 4)]


def test_the_list_is_there_before_the_first_byte(server, tmp_path):
    _, address = put_shards(server, 4, Stall(-1))
    thread = threading.Thread(target=lambda: get(address, tmp_path, timeout=1.0), daemon=True)
    thread.start()
    while not server.requests:
        time.sleep(0.01)
    listing = read_listing(tmp_path)
    assert listing.train == ("shard_0.parquet", "shard_1.parquet", "shard_2.parquet")
    assert listing.val == ("shard_3.parquet",)
    thread.join()


def test_several_at_a_time(server, tmp_path):
    """No file comes before all eight were asked for."""
    data, address = put_shards(server, 8)
    together = threading.Barrier(8)

    def answer(exchange):
        together.wait(60)
        behave(exchange)

    for name in data:
        server.resources[f"/{name}"].script = [answer]
    assert get(address, tmp_path, workers=8, timeout=60.0).ok
    assert contents(tmp_path) == data


def test_the_list_grows_and_never_shrinks(server, tmp_path):
    data, address = put_shards(server, 6)
    names = list(data)
    done = get(address, tmp_path, count=2)
    assert read_listing(tmp_path).train == tuple(names[:2])
    assert set(contents(tmp_path)) == {*names[:2], names[5]}
    assert done.skipped == ()

    asked = len(server.requests)
    done = get(address, tmp_path, count=4)
    assert read_listing(tmp_path).train == tuple(names[:4])
    assert sorted(done.skipped) == [*names[:2], names[5]]
    assert len(server.requests) == asked + 2

    done = get(address, tmp_path, count=1)
    assert [path.name for path in done.paths] == [names[0], names[5]]
    assert read_listing(tmp_path).train == tuple(names[:4])
    assert read_listing(tmp_path).val == (names[5],)

    with pytest.raises(ArgumentError, match=r"val file 0 is 'shard_5.parquet' in its files.json and 'shard_3.parquet'"):
        get(server.url("/shard_{0..3}.parquet"), tmp_path, count=2)
    with pytest.raises(ArgumentError, match=r"another dataset: train file 0 .* Choose another folder"):
        get(server.url("/other_{0..3}.parquet"), tmp_path, count=2)
    assert read_listing(tmp_path).train == tuple(names[:4])


def test_numbered_files_without_an_end(server, tmp_path):
    put_shards(server, 6)
    address = server.url("/shard_{:01d}.parquet")
    get(address, tmp_path, count=2)
    assert read_listing(tmp_path).val == ("shard_2.parquet",)
    get(address, tmp_path, count=4)
    assert [name[6] for name in read_listing(tmp_path).train] == ["0", "1", "3", "4"]
    assert read_listing(tmp_path).val == ("shard_2.parquet",)
    with pytest.raises(ArgumentError, match="the number of files is not known"):
        get(address, tmp_path)


def test_one_file_that_is_missing(server, tmp_path):
    """A 404 is asked for once, and the others arrive."""
    data, address = put_shards(server, 4)
    del server.resources["/shard_1.parquet"]
    done = get(address, tmp_path)
    assert not done.ok
    assert list(done.failed) == ["shard_1.parquet"]
    assert "404" in done.failed["shard_1.parquet"]
    assert server.url("/shard_1.parquet") in done.failed["shard_1.parquet"]
    assert len(server.asked("/shard_1.parquet")) == 1
    del data["shard_1.parquet"]
    assert contents(tmp_path) == data


def test_a_server_that_has_nothing(server, tmp_path):
    """After 20 files in a row the rest is not tried."""
    done = get(server.url("/shard_{000..499}.parquet"), tmp_path)
    assert len(done.failed) == 500
    assert len(server.requests) < 30
    assert "not tried" in done.failed["shard_400.parquet"]
    assert contents(tmp_path) == {}


def test_no_server(tmp_path):
    done = get("http://127.0.0.1:1/shard_{0..1}.parquet", tmp_path, timeout=1.0)
    assert "the server cannot be reached, tried" in done.failed["shard_0.parquet"]


def test_through_a_proxy(server, tmp_path, monkeypatch):
    data = {f"f{number}.parquet": make_file(number) for number in range(2)}
    for name, content in data.items():
        server.put(f"http://data.invalid/{name}", content, Break(70_000))
    monkeypatch.setenv("http_proxy", server.url("", login="me:proxysecret"))
    assert get("http://data.invalid/f{0..1}.parquet", tmp_path).ok
    assert contents(tmp_path) == data
    assert all(request.headers["Proxy-Authorization"].startswith("Basic ") for request in server.requests)
    monkeypatch.setenv("no_proxy", "data.invalid")
    done = get("http://data.invalid/f{0..1}.parquet", tmp_path / "direct", timeout=0.5)
    assert "the name of the server is not known" in done.failed["f0.parquet"]


def test_a_list_of_what_never_came_is_replaced(server, tmp_path):
    """After a wrong address, the right one may use the same folder."""
    data = make_file(1)
    server.put("/right_0.parquet", data)
    server.put("/right_1.parquet", data)
    wrong = get(server.url("/wrong_{0..1}.parquet"), tmp_path)
    assert not wrong.ok
    right = get(server.url("/right_{0..1}.parquet"), tmp_path)
    assert right.ok
    assert read_listing(tmp_path).train == ("right_0.parquet",)
