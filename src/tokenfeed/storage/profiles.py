"""Profiles of the AWS tools: keys in the shared files, of a `credential_process`, of single sign-on, of a role.

The last two are left to botocore, if it is installed. Keys that expire are asked for again before they do.
"""

import configparser
import functools
import importlib
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tokenfeed.errors import ArgumentError

__all__ = ["find_keys", "profile_files", "profile_state", "read_profile"]

Keys = dict[str, str]
"""`access_key_id`, `secret_access_key` and perhaps `session_token`."""

_NAMES = {"access_key_id": "AccessKeyId", "secret_access_key": "SecretAccessKey", "session_token": "SessionToken"}
_BY_BOTOCORE = ("sso_session", "sso_start_url", "role_arn", "web_identity_token_file", "login_session")
_PROCESS_SECONDS = 60
_EARLY = timedelta(minutes=5)


def profile_files() -> tuple[Path, Path]:
    """Where keys are, and where settings are."""
    home = Path.home() / ".aws"
    return (
        Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials").expanduser(),
        Path(os.environ.get("AWS_CONFIG_FILE") or home / "config").expanduser(),
    )


def profile_state() -> tuple[object, ...]:
    """A value that changes whenever a profile may."""
    files = profile_files()
    return os.environ.get("AWS_PROFILE") or "default", *files, *map(_stamp, files)


def read_profile() -> Keys:
    """What the files say of the profile that the environment names, or of the default one."""
    return dict(_read(profile_state()))


def find_keys() -> Keys:
    """The keys of the profile, valid now; nothing where it has none."""
    find = _provider(profile_state())
    return {} if find is None else find()


@functools.lru_cache(8)
def _read(state: tuple[Any, ...]) -> Keys:
    name, keys, settings, *_ = state
    found: Keys = {}
    for path, section in ((settings, f"profile {name}"), (keys, name)):
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError) as error:
            raise ArgumentError(f"{path} cannot be read: {type(error).__name__}") from None  # it may quote a key
        section = name if name == "default" and parser.has_section(name) else section
        if parser.has_section(section):
            found |= dict(parser.items(section))
    return found


@functools.lru_cache(8)
def _provider(state: tuple[Any, ...]) -> Callable[[], Keys] | None:
    """How to get the keys of a profile, as the AWS tools do."""
    profile, name = _read(state), state[0]
    if profile.get("aws_access_key_id"):
        keys = {key: profile.get(f"aws_{key}", "") for key in _NAMES}
        return lambda: keys
    if any(key in profile for key in _BY_BOTOCORE):
        return _by_botocore(name)
    if "credential_process" in profile:
        return _ByProcess(name, profile["credential_process"])
    return None


class _ByProcess:
    """Keys that a command writes, as JSON. Nothing that it writes is shown."""

    def __init__(self, name: str, command: str) -> None:
        self._name, self._command = name, command
        self._keys: Keys = {}
        self._expires = datetime.max.replace(tzinfo=UTC)

    def __call__(self) -> Keys:
        if not self._keys or datetime.now(UTC) + _EARLY > self._expires:
            self._keys, self._expires = self._ask()
        return self._keys

    def _ask(self) -> tuple[Keys, datetime]:
        try:
            done = subprocess.run(shlex.split(self._command), capture_output=True, timeout=_PROCESS_SECONDS, check=True)
            answer = json.loads(done.stdout)
            keys = {ours: str(answer[theirs]) for ours, theirs in _NAMES.items() if answer.get(theirs)}
            expires = datetime.fromisoformat(answer.get("Expiration") or datetime.max.isoformat())
            if "access_key_id" not in keys or "secret_access_key" not in keys:
                raise KeyError
        except (OSError, ValueError, KeyError, TypeError, AttributeError, subprocess.SubprocessError) as error:
            raise ArgumentError(
                f"the credential_process of the AWS profile {self._name!r} gave no keys ({type(error).__name__}). Run "
                "it yourself: it must end with status 0 and write JSON with AccessKeyId and SecretAccessKey"
            ) from None
        return keys, expires if expires.tzinfo else expires.replace(tzinfo=UTC)


def _by_botocore(name: str) -> Callable[[], Keys]:
    try:
        session = importlib.import_module("botocore.session").Session(profile=name)
        errors = importlib.import_module("botocore.exceptions")
    except ImportError as error:
        raise ArgumentError(
            f"the AWS profile {name!r} is one by single sign-on or role, for which botocore is needed: pip install "
            "botocore; or put keys into the environment by `aws configure export-credentials --format env`"
        ) from error
    found: list[Any] = []

    def get() -> Keys:
        try:
            if not found:
                found.append(session.get_credentials())
            frozen = found[0].get_frozen_credentials()  # renewed before they expire
        except (errors.BotoCoreError, errors.ClientError, AttributeError) as error:
            raise ArgumentError(
                f"the AWS profile {name!r} gives no keys: {type(error).__name__}. For single sign-on, run `aws sso "
                f"login --profile {name}`; for a role, look at its source_profile and role_arn"
            ) from None
        keys = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key}
        return keys | ({"session_token": frozen.token} if frozen.token else {})

    return get


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
