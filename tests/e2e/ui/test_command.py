"""`tokenfeed serve`, as a user types it."""

import os
import re
import signal
import subprocess
import urllib.request

import pytest

from command_line import COMMAND
from tokenfeed.errors import AddressInUseError, NotAStoreError, NotFoundError
from tokenfeed.ui import Server, open_subject


def start(*arguments):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "80"}
    return subprocess.Popen(
        [COMMAND, "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_it_says_where_it_is_and_ends_when_told(made):
    process = start(made.web, "--no-open", "--tokenizer", made.tokenizer)
    try:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/\?token=[\w-]{32}", address)
        with urllib.request.urlopen(address, timeout=10) as response:
            assert b"<title>tokenfeed</title>" in response.read()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert told == ""
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_what_cannot_be_shown_is_said(tmp_path):
    with pytest.raises(NotFoundError, match="nothing"):
        open_subject(str(tmp_path / "nothing"))
    with pytest.raises(NotAStoreError):
        open_subject(str(tmp_path))


def test_a_port_that_is_taken_is_said(made, store_server):
    with pytest.raises(AddressInUseError, match="port 0"):
        Server(open_subject(str(made.web)), port=store_server.port)
