"""Tokenizers of models on the Hugging Face hub, fetched by huggingface_hub into its own cache."""

import importlib
import os
import re

from tokenfeed.errors import ArgumentError, DependencyError, DownloadError, NotFoundError

__all__ = ["find_on_hub"]

_ADDRESS = re.compile(r"hf://(?:models/)?([\w.-]+(?:/[\w.-]+)?)(?:@([^/]+))?/?")
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "*.model", *_TEMPLATES)


def find_on_hub(address: str) -> str:
    """The local folder with the files of a tokenizer, from `hf://owner/name[@revision]`. Fetches what is not there yet.

    The token of HF_TOKEN or `hf auth login` is used. Without a network, what was fetched before is found again.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        name = address.removeprefix("hf://")
        raise NotFoundError(f"there is no tokenizer at {name}: no such path, and not the name of a model, owner/name")
    try:
        library, errors = map(importlib.import_module, ("huggingface_hub", "huggingface_hub.errors"))
    except ImportError as error:
        raise DependencyError(
            f"there is no folder {match[1]}; tokenizers of the Hugging Face hub need the package huggingface_hub: pip "
            f"install 'tokenfeed[hub]' ({error})"
        ) from error
    try:
        endpoint = os.environ.get("HF_ENDPOINT") or None
        options = {"revision": match[2], "endpoint": endpoint, "allow_patterns": list(_FILES)}
        folder: str = library.snapshot_download(match[1], **options)
    except errors.HFValidationError as error:
        raise ArgumentError(f"{match[1]} is neither a folder nor the name of a model on the hub: {error}") from None
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, errors.HTTPError, OSError) as error:
        answer = next((one for one in (error, error.__cause__) if isinstance(one, errors.HfHubHTTPError)), None)
        if answer is None:
            what = "the hub cannot be reached"
        else:
            what = f"the hub answered {answer.response.status_code}. If it is private or gated, log in (hf auth login)"
        raise DownloadError(f"there is no folder {match[1]}, and no tokenizer of that name was found: {what}") from None
    return folder
