"""A machine without credentials."""

import pytest

from tokenfeed.storage import credentials


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch, tmp_path):
    for name in (*credentials._S3_VARIABLES, *credentials._S3_ELSEWHERE, *credentials._GCS_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE", raising=False)
    monkeypatch.delenv("AWS_CONFIG_FILE", raising=False)
