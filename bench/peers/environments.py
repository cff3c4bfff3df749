"""Environments of the peers, one each, from pinned lists; the project's own is never touched."""

import subprocess
import sys
import time
from pathlib import Path

from parent import HERE, Contender

__all__ = ["LOADERS", "PREPARES", "STREAMS", "TOKENIZERS", "ensure", "find"]

_ROOT = HERE.parents[1]
_FOLDER = HERE.parent / ".data" / "peers" / "environments"
_SECONDS = 1200

# adapter, title, environment ("" for the project's own)
LOADERS = (
    ("c_loop", "C loop (the limit)", ""),
    ("tokenfeed_loader", "tokenfeed", "tokenfeed"),
    ("tokenfeed_mapped", "tokenfeed, mmap", "tokenfeed"),
    ("numpy_memmap", "NumPy memmap, vectorised", ""),
    ("torch_batched", "torch DataLoader, batched", ""),
    ("torch_item", "torch DataLoader, item", ""),
    ("litdata_peer", "litdata", "litdata"),
    ("datatrove_peer", "datatrove / nanotron", "datatrove"),
    ("grain_peer", "grain", "grain"),
    ("datasets_peer", "Hugging Face datasets", "datasets"),
    ("lancedb_peer", "LanceDB StreamingDataset", "lancedb"),
    ("megatron_peer", "Megatron-core GPTDataset", "megatron"),
    ("olmo_peer", "OLMo-core", "olmo"),
    ("mosaicml_peer", "MosaicML streaming", "mosaicml"),
)
STREAMS = (
    ("tokenfeed_stream", "tokenfeed", "tokenfeed"),
    ("tokenfeed_stream_tiktoken", "tokenfeed, tiktoken", "tokenfeed"),
    ("nanochat_stream", "nanochat's loop, tiktoken", ""),
    ("datasets_stream", "Hugging Face streaming + map, tiktoken", "datasets"),
    ("grain_stream", "grain, first-fit packing, tiktoken", "grain"),
    ("torchtitan_stream", "torchtitan, tiktoken", "torchtitan"),
)
PREPARES = (
    ("tokenfeed_prepare", "tokenfeed prepare", "tokenfeed"),
    ("datatrove_prepare", "datatrove DocumentTokenizer", "datatrove"),
    ("litdata_prepare", "litdata optimize, tiktoken", "litdata"),
    ("megatron_prepare", "Megatron preprocess_data", "megatron"),
)
TOKENIZERS = (
    ("tokenfeed_tokenizer", "tokenfeed Tokenizer.encode_batch", "tokenfeed"),
    ("tiktoken_lists", "tiktoken, encode_ordinary_batch", "tokenizers"),
    ("hugging_face_tokenizers", "Hugging Face tokenizers, encode_batch_fast", "tokenizers"),
    ("fastokens_flat", "fastokens, encode_batch_flat", "tokenizers"),
    ("gigatoken_flat", "gigatoken, encode_batch", "tokenizers"),
    ("kitoken_lists", "kitoken, encode", "tokenizers"),
    ("splintr_flat", "splintr, encode_batch_flat", "tokenizers"),
)


def find(adapter: str, title: str, environment: str) -> Contender:
    python = _FOLDER / environment / "bin" / "python" if environment else Path(sys.executable)
    return Contender(adapter, title, python)


def ensure(environment: str) -> str | None:
    """Install a peer, unless its list is installed already. Returns None, or why it could not be."""
    if not environment:
        return None
    wanted = HERE / "requirements" / f"{environment}.txt"
    folder = _FOLDER / environment
    ready = folder / ".installed"
    if ready.exists() and ready.read_text() == wanted.read_text():
        return None
    print(f"installing {environment} …", flush=True)
    began = time.perf_counter()
    commands = (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement", str(wanted)],
    )
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, cwd=_ROOT)
        except subprocess.TimeoutExpired:
            return f"not installed within {_SECONDS} s"
        if done.returncode != 0:
            lines = [line for line in done.stderr.strip().splitlines() if line.startswith("ERROR")]
            return (lines or done.stderr.strip().splitlines() or ["pip failed without a word"])[-1]
    ready.write_text(wanted.read_text())
    print(f"installed {environment} in {time.perf_counter() - began:.0f} s", flush=True)
    return None
