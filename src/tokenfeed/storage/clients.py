"""obstore clients: one for every bucket or server, kept as long as the environment says the same."""

import base64
import os
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

from tokenfeed.errors import ArgumentError
from tokenfeed.storage import credentials
from tokenfeed.storage.address import Address, Secret, parse, secret_of
from tokenfeed.storage.patience import Patience
from tokenfeed.storage.runtime import runtime

__all__ = ["Client", "client_for"]

_MOST_CLIENTS = 256


class Client:
    """An obstore store, and what has been learned about the server behind it."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.calls_ranges_whole = False
        """It gives the range asked for, but with status 200, which obstore refuses; see `plain_http.py`."""
        self.signed: dict[str, tuple[float, str]] = {}
        """By key: until when (time.monotonic) an address is signed, and the address."""


def client_for(uri: str, patience: Patience, *, retries: bool = False) -> tuple[Client, Address]:
    """The client for a clean address. `retries` has obstore try again by itself."""
    address = parse(uri)
    secret = secret_of(uri) if address.is_http else Secret()
    state: tuple[object, ...] = ()
    if address.scheme in ("s3", "s3a"):
        state = credentials.s3_state()
    elif address.scheme == "gs":
        state = credentials.gcs_state()
    elif address.scheme in ("az", "abfs", "abfss"):
        state = tuple(map(os.environ.get, credentials.AZURE_VARIABLES))
    kept = runtime().kept
    name = ("client", address.scheme, address.host, secret, state, patience, retries)
    client: Client | None = kept.get(name)
    if client is None:
        client = Client(_make_store(address, secret, patience, retries))
        if sum(isinstance(one, Client) for one in kept.values()) > _MOST_CLIENTS:
            for old in [key for key, one in list(kept.items()) if isinstance(one, Client) and "memory" not in key]:
                kept.pop(old, None)
        client = kept.setdefault(name, client)
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
    try:
        if address.scheme == "memory":
            return _memory_store(address.host)
        if address.is_http:
            options["allow_http"] = address.scheme == "http"
            if secret.login:
                login = base64.b64encode(unquote(secret.login).encode()).decode()
                options["default_headers"] = {"authorization": f"Basic {login}"}
            query = f"?{secret.query}" if secret.query else ""
            return library.HTTPStore.from_url(f"{address.scheme}://{address.host}{query}", **rest)
        if address.scheme == "gs":
            config = credentials.gcs_config()
            options["allow_http"] = str(config.get("base_url", "")).startswith("http://")
            return library.GCSStore(address.host, config=config, **rest)
        if address.scheme in ("s3", "s3a"):
            config = credentials.s3_config()
            options["allow_http"] = str(config.get("endpoint", "")).startswith("http://")
            return library.S3Store(address.host, config=config, **rest)
        options["allow_http"] = True  # a plain endpoint is used only where the environment names one
        return library.AzureStore.from_url(f"{address.scheme}://{address.host}", **rest)
    except (ValueError, runtime().obstore.exceptions.BaseError) as error:
        if isinstance(error, ArgumentError):
            raise
        what = str(error).partition("\n")[0]
        raise ArgumentError(f"{address.scheme}://{address.host} cannot be opened as configured: {what}") from None


def _memory_store(name: str) -> Any:
    """The one of that name in this process. A forked child begins with empty ones."""
    kept = runtime().kept
    key = ("memory", name)
    return kept.get(key) or kept.setdefault(key, runtime().obstore.store.MemoryStore())
