"""One S3 server, one that speaks as Google's, and one nginx for all tests of a process."""

import os

import pytest

from gcs_server import GcsServer
from servers import nginx_server, s3_server


@pytest.fixture(scope="session")
def s3():
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def www(tmp_path_factory):
    """(folder, address) of nginx."""
    folder = tmp_path_factory.mktemp("www")
    folder.chmod(0o755)
    for parent in folder.parents[:2]:
        parent.chmod(0o755)  # nginx gives up root
    with nginx_server(folder, tmp_path_factory.mktemp("nginx")) as url:
        yield folder, url


@pytest.fixture(scope="session")
def gcs():
    with GcsServer() as server:
        yield server


@pytest.fixture
def gcs_environment(gcs, monkeypatch):
    """This process finds the server that speaks as Google's."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.host)
    return gcs


@pytest.fixture
def s3_environment(s3, monkeypatch):
    """This process finds the S3 server."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "TOKENFEED_"))]:
        monkeypatch.delenv(name)
    s3.use(monkeypatch)
    return s3
