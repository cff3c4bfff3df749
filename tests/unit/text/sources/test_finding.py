"""The list of files of a folder."""

import pytest

from tokenfeed.errors import FormatError
from tokenfeed.text.sources.finding import Listing, read_listing, write_listing


def test_round_trip(tmp_path):
    assert read_listing(tmp_path) is None
    for listing in (Listing(("b.parquet", "a.parquet"), ("é.parquet",)), Listing((), ())):
        write_listing(tmp_path, listing)
        assert read_listing(tmp_path) == listing
    assert [path.name for path in tmp_path.iterdir()] == ["files.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a list of files"),
        ("[]", "not a list of files"),
        ("{", "not a list of files"),
        ('{"version": 1, "train": []}', "'val'"),
        ('{"version": 2, "train": [], "val": []}', "version is 2; this tokenfeed reads version 1"),
        ('{"version": 1, "train": "a", "val": []}', "a split must be a list of names, not 'a'"),
    ],
)
def test_what_is_no_listing(tmp_path, text, message):
    (tmp_path / "files.json").write_text(text)
    with pytest.raises(FormatError, match=message) as caught:
        read_listing(tmp_path)
    assert str(tmp_path / "files.json") in str(caught.value)
