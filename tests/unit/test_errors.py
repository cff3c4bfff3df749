"""Errors keep what they know on the way to another process."""

import errno
import pickle

import pytest

from flaky_server import FlakyServer
from tokenfeed import errors
from tokenfeed.storage import objects


def test_a_missing_object_keeps_its_number_and_name():
    with FlakyServer() as server, pytest.raises(errors.NotFoundError) as caught:
        objects.read(server.url("/none"))
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    for error in (caught.value, again):
        assert error.errno == errno.ENOENT
        assert error.filename.startswith(server.url("/none"))
        assert str(error) == str(caught.value) != ""


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_every_error_survives_pickling(kind):
    again = pickle.loads(pickle.dumps(kind("what, where, what to do")))
    assert type(again) is kind
    assert str(again) == "what, where, what to do"
