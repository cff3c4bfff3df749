"""Checks of installed packages and of credentials. They report names and versions, never secrets."""

import os
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from tokenfeed.errors import TokenfeedError
from tokenfeed.observe.checks import Check
from tokenfeed.observe.machine import find_gpus
from tokenfeed.storage.credentials import AZURE_VARIABLES, s3_config
from tokenfeed.text.tokenizer.engines import ENGINES, make_engine
from tokenfeed.text.tokenizer.vocabulary import PATTERNS, Vocabulary

__all__ = ["check_credentials", "check_packages"]

_NEEDED = {
    "pyarrow": "reads Parquet",
    "tiktoken": "tokenises",
    "obstore": "reads object stores and downloads",
    "msgpack": "the msgpack codec for payloads",
}
_OPTIONAL = {
    "huggingface_hub": ("'tokenfeed[hub]'", "datasets of the Hugging Face hub"),
    "torch": ("'tokenfeed[torch]'", "batches as tensors"),
    "jax": ("'tokenfeed[jax]'", "batches as global arrays"),
    "ray": ("'tokenfeed[ray]'", "prepare on a cluster"),
    "starlette": ("'tokenfeed[ui]'", "the page of `tokenfeed serve`"),
    "fastokens": ("'tokenfeed[text]'", "tokenises 3 to 6 times as fast as tiktoken"),
    "rustbpe": ("'tokenfeed[text]'", "trains vocabularies"),
    "tokenizers": ("tokenizers", "not needed to load a tokenizer.json"),
    "gigatoken": ("gigatoken", "another tokenizer engine, used only if named"),
    "psutil": ("psutil", "memory of the process on systems without /proc"),
    "pynvml": ("nvidia-ml-py", "GPU load in `tokenfeed top`"),
}
_DISTRIBUTIONS = {"pynvml": "nvidia-ml-py"}
_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_SKIP_SIGNATURE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SKIP_SIGNATURE",
    "STORAGE_EMULATOR_HOST",
    *AZURE_VARIABLES,
    "HF_TOKEN",
)
_FILES = (".aws/credentials", ".aws/config", ".config/gcloud/application_default_credentials.json")


def check_packages() -> Iterator[Check]:
    """Check versions, CUDA devices, and that each tokenizer engine works. Importing torch may take seconds."""
    for name, what in _NEEDED.items():
        if find_spec(name):
            yield Check(name, "ok", _version(name))
        else:
            yield Check(name, "problem", f"not installed ({what})", f"pip install {name}, or reinstall tokenfeed.")
    for name, (install, what) in _OPTIONAL.items():
        if find_spec(name):
            yield _check_torch() if name == "torch" else Check(name, "ok", _version(name))
        else:
            yield Check(name, "note", f"not installed ({what})", f"pip install {install}, if you need it.")
    for gpu in find_gpus():
        memory = f"{gpu.used_bytes / 1e9:.1f} of {gpu.total_bytes / 1e9:.1f} GB used"
        yield Check(f"GPU {gpu.index}", "ok", f"{gpu.name}, {memory}, busy {gpu.busy:.0%}")
    yield from _check_engines()


def _version(name: str) -> str:
    try:
        return metadata.version(_DISTRIBUTIONS.get(name, name))
    except metadata.PackageNotFoundError:
        return "unknown version"


def _check_torch() -> Check:
    version = _version("torch")
    try:
        cuda = import_module("torch").cuda
        if not cuda.is_available():
            return Check("torch", "ok", f"{version}, without CUDA devices")
        names = [cuda.get_device_name(index) for index in range(cuda.device_count())]
    except Exception as error:  # noqa: BLE001 — a broken driver raises all kinds
        return Check(
            "torch", "note", f"{version} cannot be used: {type(error).__name__}", "Reinstall it for this machine."
        )
    return Check("torch", "ok", f"{version}, CUDA: {', '.join(names)}")


def _check_engines() -> Iterator[Check]:
    vocabulary = Vocabulary({bytes((byte,)): byte for byte in range(256)}, PATTERNS["gpt2"], {})
    usable: list[str] = []
    broken: list[str] = []
    for name in ENGINES:
        if find_spec(name):
            try:
                ids, _ = make_engine(vocabulary, name).encode(["Bytes, as they are."], 1)
            except Exception as error:  # noqa: BLE001 — libraries of others
                broken.append(f"{name} ({type(error).__name__})")
            else:
                (usable if bytes(ids.tolist()) == b"Bytes, as they are." else broken).append(name)
    found = ", ".join(usable) or "none"
    if broken:
        advice = f"Reinstall {', '.join(broken)}." if usable else "pip install tiktoken."
        yield Check(
            "tokenizer engines", "note" if usable else "problem", f"{found} (not working: {', '.join(broken)})", advice
        )
    else:
        yield Check(
            "tokenizer engines", "ok" if usable else "problem", found, "" if usable else "pip install tiktoken."
        )


def check_credentials() -> Iterator[Check]:
    """List credentials found for object stores and the Hugging Face hub. Contacts no server."""
    files = [f"~/{name}" for name in _FILES if (Path.home() / name).exists()]
    found = [*filter(os.environ.get, _VARIABLES), *files]
    if not found:
        yield Check("credentials", "ok", "none found: only public remote data can be read")
        return
    try:
        signs = "access_key_id" in s3_config()
    except TokenfeedError as error:
        yield Check("credentials", "note", ", ".join(found), str(error))
        return
    yield Check("credentials", "ok", f"{', '.join(found)}{'; requests to S3 are signed' if signs else ''}")
