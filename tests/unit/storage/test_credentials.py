"""Keys and endpoints from the environment and the shared files of the AWS tools; none of them in any message."""

import pytest

from tokenfeed.errors import ArgumentError
from tokenfeed.storage.credentials import azure_config, environment, gcs_config, s3_config


def test_without_credentials_requests_are_not_signed():
    assert s3_config() == {"region": "us-east-1", "skip_signature": True}


def test_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    with pytest.raises(ArgumentError, match="AWS_SECRET_ACCESS_KEY"):
        s3_config()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://here:9000/")
    assert s3_config() == {
        "region": "eu-west-1",
        "endpoint": "http://here:9000",
        "access_key_id": "key",
        "secret_access_key": "secret",
        "session_token": "token",
    }
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert "access_key_id" not in s3_config()


def test_the_shared_files(monkeypatch, tmp_path):
    folder = tmp_path / ".aws"
    folder.mkdir()
    before = environment("s3")
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b%c\n[other]\naws_access_key_id = x\n"
        "aws_secret_access_key = y\n[sso]\nsso_session = z\n"
    )
    (folder / "config").write_text("[default]\nregion = eu-central-1\n[profile other]\nendpoint_url = http://there\n")
    assert environment("s3") != before
    assert s3_config() == {"region": "eu-central-1", "access_key_id": "a", "secret_access_key": "b%c"}
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert s3_config() == {
        "region": "us-east-1",
        "endpoint": "http://there",
        "access_key_id": "x",
        "secret_access_key": "y",
    }
    monkeypatch.setenv("AWS_PROFILE", "sso")
    with pytest.raises(ArgumentError, match="profile 'sso'"):
        s3_config()


def test_a_broken_shared_file_is_not_quoted(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("aws_secret_access_key = hidden\n")
    with pytest.raises(ArgumentError, match="cannot be read") as caught:
        s3_config()
    assert "hidden" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_emulator_of_google_storage(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:4443")
    assert gcs_config()["base_url"] == "http://localhost:4443"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AccountName=me;AccountKey=a==;EndpointSuffix=core.windows.net", "https://me.blob.core.windows.net"),
        ("AccountName=me;AccountKey=a==;BlobEndpoint=http://here:1/me/", "http://here:1/me"),
    ],
)
def test_connection_strings_of_azure(monkeypatch, text, expected):
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    assert azure_config() == {"account_name": "me", "account_key": "a==", "endpoint": expected}


def test_connection_strings_that_are_none(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    assert azure_config() == {"use_emulator": True}
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=hidden")
    with pytest.raises(ArgumentError, match="AccountName") as caught:
        azure_config()
    assert "hidden" not in str(caught.value)
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    assert azure_config() == {}
