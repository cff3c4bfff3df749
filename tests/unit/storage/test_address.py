"""Addresses: what is remote, joining and referring, and secrets that stay where they are needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import ArgumentError
from tokenfeed.storage.address import Secret, clean, is_remote, join, local_path, parse, refer, resolve, secret_of
from tokenfeed.storage.folder import LocalFolder, RemoteFolder, display, open_folder

NAMES = st.lists(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,8}", fullmatch=True).map(str.strip), max_size=5)


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("s3://b/k", True),
        ("memory://x", True),
        ("https://h/p", True),
        ("/a/b", False),
        ("a:b", False),
        ("file:///a", False),
    ],
)
def test_what_is_remote(path, remote):
    assert is_remote(path) == remote


def test_an_unknown_scheme_names_the_known_ones():
    with pytest.raises(ArgumentError, match=r"ftp:// cannot be opened; known are s3://.*https://.*file://"):
        is_remote("ftp://host/path")


@pytest.mark.parametrize("uri", ["s3://", "s3:///key", "s3://b/a//b", "s3://b/../a", "https://h/a/./b"])
def test_addresses_that_name_nothing(uri):
    with pytest.raises(ArgumentError):
        RemoteFolder(uri)


def test_file_addresses_are_local_paths(tmp_path):
    assert local_path("file:///a%20b/c") == "/a b/c"
    assert isinstance(open_folder(tmp_path.as_uri()), LocalFolder)
    assert open_folder(tmp_path.as_uri()).local == tmp_path
    with pytest.raises(ArgumentError, match="another machine"):
        local_path("file://elsewhere/a")


@given(NAMES, NAMES)
def test_a_reference_leads_back(here, there):
    """resolve(folder, refer(folder, uri)) is uri, in one bucket and in two."""
    folder, uri = "/".join(["s3://b", *here]), "/".join(["s3://b", *there])
    assert resolve(folder, refer(folder, uri)) == uri
    other = uri.replace("s3://b", "gs://c")
    assert refer(folder, other) == other == resolve(folder, other)


def test_references_between_buckets_and_disks(tmp_path):
    remote, local = RemoteFolder("s3://b/all"), LocalFolder(tmp_path / "all")
    assert remote.refer("s3://b/x/a") == "../x/a"
    assert remote.resolve(remote.refer(tmp_path / "a b")) == (tmp_path / "a b").as_uri()
    assert open_folder(remote.resolve(remote.refer(tmp_path / "a b"))).local == tmp_path / "a b"
    assert local.resolve(local.refer("s3://b/a")) == "s3://b/a"
    assert local.refer(tmp_path / "a") == "../a"
    assert remote.resolve("../../../..") == "s3://b"  # nothing leads out of a bucket


def test_secrets_stay_out_of_sight():
    given = "https://user:pa%20ss@host:8443/data/store/?X-Signature=abc&x=1"
    folder = open_folder(given)
    for shown in (str(folder), repr(folder), folder.path("manifest.json"), folder.identity, display(given)):
        assert not any(secret in shown for secret in ("pa%20ss", "user", "Signature"))
    assert folder.path("manifest.json") == "https://host:8443/data/store/manifest.json"
    assert secret_of(folder.path("a/b.npy")) == ("user:pa%20ss", "X-Signature=abc&x=1", (), "")
    assert secret_of("https://host:8443/data/other") == Secret()
    assert secret_of("https://host:8443/data/store2") == Secret()
    assert secret_of("http://host:8443/data/store/a") == Secret()
    part = folder.resolve("../other")  # a store that this one consists of, on the same server
    assert part == "https://host:8443/data/other"
    assert secret_of(part) == ("user:pa%20ss", "X-Signature=abc&x=1", (), "")
    assert secret_of(folder.resolve("https://elsewhere/other")) == Secret()


def test_keys_are_as_they_are_and_urls_are_decoded():
    assert parse(join(clean("s3://b/a b%20c/"), "d?e")).key == "a b%20c/d?e"
    assert parse(clean("https://h/a%20b/c")).key == "a b/c"
    assert parse(clean("abfss://container@account.dfs.core.windows.net/x")).host == (
        "container@account.dfs.core.windows.net"
    )
