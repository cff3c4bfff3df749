"""Credentials and endpoints of object stores, from the usual environment."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError
from tokenfeed.storage.profiles import find_keys, profile_files, profile_state, read_profile

__all__ = ["AZURE_VARIABLES", "azure_config", "environment", "gcs_config", "learn_region", "portable", "s3_config"]

Config = dict[str, Any]

_ANY_ACCOUNT = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'
"""For an emulator. obstore signs what it writes even if it is told not to sign."""

_S3_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_SKIP_SIGNATURE", "AWS_EC2_METADATA_DISABLED"),
    "AWS_CA_BUNDLE",
)
_S3_ELSEWHERE = (
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
)
_GCS_VARIABLES = (
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SKIP_SIGNATURE", "STORAGE_EMULATOR_HOST"),
)
AZURE_VARIABLES = (
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN"),
    *("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_USE_EMULATOR", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    *("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"),
)


_regions: dict[str, str] = {}
"""Regions of buckets, as their servers told."""


def environment(scheme: str, bucket: str = "") -> tuple[object, ...]:
    """A value that changes whenever the settings of such an object store may. Keys that expire are renewed."""
    if scheme == "gs":
        return tuple(map(os.environ.get, _GCS_VARIABLES))
    if scheme not in ("s3", "s3a"):
        return tuple(map(os.environ.get, AZURE_VARIABLES))
    values = (*map(os.environ.get, _S3_VARIABLES), _regions.get(bucket))
    signs = not os.environ.get("AWS_SKIP_SIGNATURE") and not values[0]
    return (*values, profile_state(), *find_keys().values()) if signs else values


def learn_region(bucket: str, region: str) -> bool:
    """Note where a bucket is. False if that helps nobody: it is known, or the user has named a region."""
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or read_profile().get("region")
    if named or _regions.get(bucket) == region:
        return False
    _regions[bucket] = region
    return True


def s3_config(bucket: str = "") -> Config:
    """Keys, region and endpoint, from the environment, else from the profile of the AWS tools.

    Without keys, the role of the machine or container is used, if there is one; else requests are not signed.
    """
    get = os.environ.get
    profile = read_profile()
    region = get("AWS_REGION") or get("AWS_DEFAULT_REGION") or profile.get("region") or _regions.get(bucket)
    config: Config = {"region": region or "us-east-1"}
    endpoint = get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL") or profile.get("endpoint_url")
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
    if (get("AWS_SKIP_SIGNATURE") or "").lower() in ("1", "true", "yes"):
        return config | {"skip_signature": True}
    names = ("access_key_id", "secret_access_key", "session_token")
    keys: Config = {name: get(f"AWS_{name.upper()}") for name in names} if get("AWS_ACCESS_KEY_ID") else find_keys()
    if not keys and get("AWS_SECRET_ACCESS_KEY"):
        raise ArgumentError("AWS_SECRET_ACCESS_KEY is set without its key: set AWS_ACCESS_KEY_ID, or neither")
    if keys:
        if not keys.get("secret_access_key"):
            raise ArgumentError("there is an AWS access key without its secret: set AWS_SECRET_ACCESS_KEY")
        return config | {name: value for name, value in keys.items() if value}
    if get("AWS_PROFILE"):
        raise ArgumentError(
            f"AWS_PROFILE is {get('AWS_PROFILE')!r}, which has no keys, role, single sign-on or credential_process in "
            f"{' or '.join(map(str, profile_files()))}"
        )
    elsewhere = any(map(get, _S3_ELSEWHERE)) or (
        (get("AWS_EC2_METADATA_DISABLED") or "").lower() != "true" and _machine_is("Amazon EC2")
    )
    return config if elsewhere else config | {"skip_signature": True}


def gcs_config() -> Config:
    """Settings for obstore, which finds credentials by itself. If there can be none, requests are not signed."""
    get = os.environ.get
    emulator = get("STORAGE_EMULATOR_HOST")
    if emulator:
        url = emulator if "://" in emulator else f"http://{emulator}"
        return {"base_url": url.rstrip("/"), "service_account_key": _ANY_ACCOUNT}
    default = Path.home() / ".config" / "gcloud" / "application_default_credentials.json"
    given = any(map(get, _GCS_VARIABLES[:4])) or default.is_file() or _machine_is("Google")
    return {} if given and not get("GOOGLE_SKIP_SIGNATURE") else {"skip_signature": True}


def azure_config() -> Config:
    """Settings in AZURE_STORAGE_CONNECTION_STRING; obstore takes all other variables by itself."""
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    parts = dict(one.partition("=")[::2] for one in (text or "").split(";") if one)
    if parts.get("UseDevelopmentStorage", "").lower() == "true":
        return {"use_emulator": True}
    names = {"AccountName": "account_name", "AccountKey": "account_key", "SharedAccessSignature": "sas_key"}
    config = {ours: parts[theirs] for theirs, ours in names.items() if theirs in parts}
    if text and ("account_name" not in config or len(config) < 2):
        what = "AccountName and AccountKey or SharedAccessSignature"
        raise ArgumentError(f"AZURE_STORAGE_CONNECTION_STRING must have {what}, with semicolons between them")
    host = f"{config.get('account_name')}.blob.{parts.get('EndpointSuffix', '')}"
    endpoint = parts.get("BlobEndpoint") or (f"https://{host}" if "EndpointSuffix" in parts else "")
    return config | ({"endpoint": endpoint.rstrip("/")} if endpoint else {})


def portable() -> dict[str, str | None]:
    """Variables by which a process on another machine has the credentials of this one; None is for one to unset there.

    Keys of a profile and of Google's key file go along themselves, since those files are here. The machine's own role
    does not: another machine has its own.
    """
    found: dict[str, str | None] = {}
    for names in (_S3_VARIABLES, _GCS_VARIABLES, AZURE_VARIABLES):
        given = {name: os.environ.get(name) for name in names}
        found |= given if any(given.values()) else {}
    with contextlib.suppress(ArgumentError):  # whoever uses a profile that is broken is told
        if not os.environ.get("AWS_ACCESS_KEY_ID") and (keys := find_keys()):
            other = {"region": "AWS_REGION", "endpoint": "AWS_ENDPOINT_URL_S3"}
            found |= {other.get(name, f"AWS_{name.upper()}"): str(value) for name, value in s3_config().items()}
            found |= {"AWS_PROFILE": None, "AWS_SESSION_TOKEN": keys.get("session_token")}
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if path and (text := _service_account(Path(path).expanduser())):
        found |= {"GOOGLE_APPLICATION_CREDENTIALS": None, "GOOGLE_SERVICE_ACCOUNT_KEY": text}
    return found


def _service_account(path: Path) -> str:
    """The text of a key file, which can be given as such; empty for any other file."""
    try:
        text = path.read_text()
        return text if json.loads(text).get("type") == "service_account" else ""
    except (OSError, ValueError, AttributeError):
        return ""


def _machine_is(maker: str) -> bool:
    """Whether Linux names this maker of the machine. Asking the network would take seconds on any other."""
    for name in ("sys_vendor", "product_name"):
        try:
            if maker in Path(f"/sys/class/dmi/id/{name}").read_text():
                return True
        except (OSError, UnicodeDecodeError):
            continue
    return False
