"""Profiles of the AWS tools: keys that a command writes, or that a role gives; none of them in any message."""

import hashlib
import json
import sys
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from flaky_server import LoopbackHandler, LoopbackServer
from tokenfeed.errors import ArgumentError
from tokenfeed.storage import credentials
from tokenfeed.storage.credentials import environment, portable, s3_config
from tokenfeed.storage.profiles import find_keys


@pytest.fixture(autouse=True)
def home(nothing_set, tmp_path):
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


def process(home, answer, *, status=0):
    """A profile whose command counts its calls, and answers."""
    script = home / "keys.py"
    script.write_text(
        f"import sys\nopen({str(home / 'calls')!r}, 'a').write('x')\nprint({answer!r})\nsys.exit({status})\n"
    )
    (home / "config").write_text(
        f"[profile job]\nregion = eu-north-1\ncredential_process = {sys.executable} '{script}'\n"
    )


def test_keys_of_a_command(home, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "job")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    process(home, f'{{"AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c", "Expiration": "{later}"}}')
    expected = {"region": "eu-north-1", "access_key_id": "a", "secret_access_key": "b", "session_token": "c"}
    assert s3_config() == s3_config() == expected
    assert environment("s3") == environment("s3")
    assert (home / "calls").read_text() == "x"  # once
    there = portable()
    assert (there["AWS_ACCESS_KEY_ID"], there["AWS_SESSION_TOKEN"], there["AWS_REGION"]) == ("a", "c", "eu-north-1")
    assert there["AWS_PROFILE"] is None


def test_keys_that_expire_are_asked_for_again(home, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "job")
    soon = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    process(home, f'{{"AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "{soon}"}}')
    find_keys()
    find_keys()
    assert (home / "calls").read_text() == "xx"


@pytest.mark.parametrize(
    ("answer", "status"), [("hidden", 0), ('{"AccessKeyId": "hidden"}', 0), ("[]", 0), ('{"hidden": 1}', 3)]
)
def test_a_command_that_fails_is_named_and_not_quoted(home, monkeypatch, answer, status):
    monkeypatch.setenv("AWS_PROFILE", "job")
    process(home, answer, status=status)
    with pytest.raises(ArgumentError, match="credential_process of the AWS profile 'job'") as caught:
        s3_config()
    assert "hidden" not in str(caught.value)


def test_a_role_needs_botocore_and_says_so(home, monkeypatch):
    (home / "config").write_text("[profile job]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = other\n")
    monkeypatch.setenv("AWS_PROFILE", "job")
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ArgumentError, match="pip install botocore"):
        s3_config()


class Aws(LoopbackHandler):
    """Answers as the token service does (POST), and as the portal of single sign-on (GET)."""

    def do_POST(self):  # noqa: N802
        self.rfile.read(int(self.headers["Content-Length"]))
        keys = "<AccessKeyId>a</AccessKeyId><SecretAccessKey>b</SecretAccessKey><SessionToken>c</SessionToken>"
        later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        inner = f"<Credentials>{keys}<Expiration>{later}</Expiration></Credentials>"
        self.answer(200, f"<R><AssumeRoleResult>{inner}</AssumeRoleResult></R>")

    def do_GET(self):  # noqa: N802
        asked = parse_qs(urlsplit(self.path).query)
        known = asked == {"role_name": ["trainer"], "account_id": ["123456789012"]}
        if not known or self.headers["x-amz-sso_bearer_token"] != "of the login":
            return self.answer(401, "{}")
        later = (datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000
        keys = {"accessKeyId": "a", "secretAccessKey": "b", "sessionToken": "c", "expiration": int(later)}
        return self.answer(200, json.dumps({"roleCredentials": keys}))

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def aws(monkeypatch):
    with LoopbackServer(Aws) as server:
        for service in ("STS", "SSO"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("AWS_PROFILE", "job")
        yield


KEYS = {"region": "eu-west-1", "access_key_id": "a", "secret_access_key": "b", "session_token": "c"}


def test_keys_of_a_role(home, aws):
    (home / "config").write_text(
        "[profile job]\nrole_arn = arn:aws:iam::123456789012:role/x\nsource_profile = other\nregion = eu-west-1\n"
    )
    (home / "credentials").write_text("[other]\naws_access_key_id = x\naws_secret_access_key = y\n")
    assert s3_config() == KEYS


def test_keys_of_single_sign_on(home, aws, monkeypatch):
    monkeypatch.setattr("botocore.credentials.SSOProvider._SSO_TOKEN_CACHE_DIR", str(home))  # found at import
    start = "https://example.awsapps.com/start"
    (home / "config").write_text(
        f"[profile job]\nsso_start_url = {start}\nsso_region = eu-west-1\nsso_account_id = 123456789012\n"
        "sso_role_name = trainer\nregion = eu-west-1\n"
    )
    with pytest.raises(ArgumentError, match="aws sso login --profile job"):
        s3_config()
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    logged_in = home / f"{hashlib.sha1(start.encode()).hexdigest()}.json"
    logged_in.write_text(json.dumps({"startUrl": start, "accessToken": "of the login", "expiresAt": later}))
    assert s3_config() == KEYS


def test_what_goes_along_to_other_machines(home, monkeypatch):
    assert portable() == {"AWS_EC2_METADATA_DISABLED": "true"} | dict.fromkeys(
        name for name in credentials._S3_VARIABLES if name != "AWS_EC2_METADATA_DISABLED"
    )
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(home / "key.json"))
    (home / "key.json").write_text('{"type": "service_account"}')
    there = portable()
    assert there["GOOGLE_SERVICE_ACCOUNT_KEY"] == '{"type": "service_account"}'
    assert there["GOOGLE_APPLICATION_CREDENTIALS"] is None
    assert not any(name.startswith("AZURE") for name in there)
