"""obstore clients: one for each bucket or server, kept while the environment stays the same."""

import base64
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tokenfeed.errors import ArgumentError
from tokenfeed.storage import credentials
from tokenfeed.storage.address import Address, Secret, parse, secret_of
from tokenfeed.storage.local import read_bytes
from tokenfeed.storage.retries import Patience
from tokenfeed.storage.runtime import runtime

__all__ = ["client_for"]

_MOST_CLIENTS = 256


def client_for(uri: str, patience: Patience, *, retries: bool = False) -> tuple[Any, Address]:
    """The obstore store of a clean address, and the address in parts. With `retries`, obstore tries again by itself."""
    address = parse(uri)
    kept: dict[Any, Any] = runtime().kept
    if address.scheme == "memory":
        name: tuple[object, ...] = ("memory", address.host)
        return kept.get(name) or kept.setdefault(name, runtime().obstore.store.MemoryStore()), address
    secret = secret_of(uri)
    state = () if address.is_http else credentials.environment(address.scheme, address.host)
    name = ("client", address.scheme, address.host, secret, state, patience, retries)
    client = kept.get(name)
    if client is None:
        clients = [key for key in list(kept) if key[0] == "client"]
        for old in clients if len(clients) >= _MOST_CLIENTS else ():
            kept.pop(old, None)
        client = kept.setdefault(name, _make_store(address, secret, patience, retries))
    return client, address


def _make_store(address: Address, secret: Secret, patience: Patience, retries: bool) -> Any:
    library = runtime().obstore.store
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=patience.total),
        "connect_timeout": timedelta(seconds=patience.connect),
        "read_timeout": timedelta(seconds=patience.stall),
    }
    retry = {
        "max_retries": 10 if retries else 0,
        "retry_timeout": timedelta(seconds=patience.total),
        "backoff": {
            "init_backoff": timedelta(seconds=patience.first_pause),
            "max_backoff": timedelta(seconds=patience.longest_pause),
            "base": 2,
        },
    }
    rest: dict[str, Any] = {"client_options": options, "retry_config": retry}
    headers = dict(secret.headers)
    if secret.login:
        headers["authorization"] = f"Basic {base64.b64encode(unquote(secret.login).encode()).decode()}"
    if headers:
        options["default_headers"] = headers
    bundle = secret.ca or (os.environ.get("AWS_CA_BUNDLE") if address.scheme in ("s3", "s3a") else "")
    if bundle:
        options["root_certificate"] = read_bytes(Path(bundle).expanduser())
    try:
        if address.is_http:
            options["allow_http"] = address.scheme == "http"  # so https:// is never redirected to http://
            query = f"?{secret.query}" if secret.query else ""
            return library.HTTPStore.from_url(f"{address.scheme}://{address.host}{query}", **rest)
        if address.scheme == "gs":
            config = credentials.gcs_config()
            options["allow_http"] = str(config.get("base_url", "")).startswith("http://")
            return library.GCSStore(address.host, config=config, **rest)
        if address.scheme in ("s3", "s3a"):
            config = credentials.s3_config(address.host)
            options["allow_http"] = str(config.get("endpoint", "")).startswith("http://")
            return library.S3Store(address.host, config=config, **rest)
        options["allow_http"] = True  # a plain endpoint is used only if the environment names one
        config = credentials.azure_config()
        return library.AzureStore.from_url(f"{address.scheme}://{address.host}", config=config, **rest)
    except (ValueError, runtime().obstore.exceptions.BaseError) as error:
        if isinstance(error, ArgumentError):
            raise
        what = str(error).partition("\n")[0]
        raise ArgumentError(f"{address.scheme}://{address.host} cannot be opened as configured: {what}") from None
