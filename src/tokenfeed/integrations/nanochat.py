"""nanochat's loaders by their own names. In `scripts/base_train.py`, change one import:

    from tokenfeed.integrations.nanochat import (
        tokenizing_distributed_data_loader_bos_bestfit, tokenizing_distributed_data_loader_with_state_bos_bestfit)

The batches are nanochat's, token for token, tokenised and packed in background threads; and a resumed run is the run.
nanochat saves what rank 0's loader gave it, so that holds the states of all ranks (about 16 KB each). They are gathered
by a gloo group of their own, in a thread, while the batch before is trained on. In `scripts/chat_sft.py`, take
`sft_data_generator_bos_bestfit`.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from tokenfeed.integrations.checkpoint import gather
from tokenfeed.text.streaming.chat import stream_chat
from tokenfeed.text.streaming.feed import TextFeed, stream
from tokenfeed.text.streaming.rows import StreamBatch
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.torch.device import DeviceBatch, to_device
from tokenfeed.types import Ints

__all__ = [
    "as_tokenizer",
    "sft_data_generator_bos_bestfit",
    "tokenizing_distributed_data_loader_bos_bestfit",
    "tokenizing_distributed_data_loader_with_state_bos_bestfit",
]

_MOST_OF_A_CONVERSATION = 2048
"""Tokens of a conversation that nanochat keeps."""


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """nanochat's tokenizer, which holds an Encoding of tiktoken, as one of ours; ours as it is."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    encoding = tokenizer.enc
    return Tokenizer.from_tiktoken(encoding, bos=encoding.decode([tokenizer.get_bos_token_id()]))


def _make_feed(
    tokenizer: Any,
    B: int,  # noqa: N803
    T: int,  # noqa: N803
    split: str,
    tokenizer_threads: int = 4,
    tokenizer_batch_size: int = 128,
    buffer_size: int = 1000,
    *,
    files: Sequence[str] | None = None,
    overflow: str = "crop",
) -> TextFeed:
    if files is None:
        from nanochat.dataset import list_parquet_files

        files = list_parquet_files()
    return stream(
        files,
        as_tokenizer(tokenizer),
        batch_size=B,
        length=T,
        split=split,
        val="last",
        sharding="per_file",
        overflow=overflow,
        buffer_size=buffer_size,
        refill_size=tokenizer_batch_size,
        threads=tokenizer_threads,
    )


def tokenizing_distributed_data_loader_with_state_bos_bestfit(
    tokenizer: Any,
    B: int,  # noqa: N803
    T: int,  # noqa: N803
    split: str,
    tokenizer_threads: int = 4,
    tokenizer_batch_size: int = 128,
    device: Any = "cuda",
    resume_state_dict: Any = None,
    buffer_size: int = 1000,
    **more: Any,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]:
    """(inputs, targets, state) without end. `files` are nanochat's unless given; `overflow="split"` crops nothing.

    base_train fetches a batch before it saves, so the state that comes with a batch is the one before it: a resumed run
    begins with that batch. A state that nanochat's own loader made is taken, too, and loses what nanochat loses.
    """
    feed = _make_feed(tokenizer, B, T, split, tokenizer_threads, tokenizer_batch_size, buffer_size, **more)
    group = dist.new_group(backend="gloo") if feed.world_size > 1 and dist.is_initialized() else None
    batches = to_device(feed, device, dtypes={"inputs": torch.long})
    if resume_state_dict is not None:
        batches.load_state_dict(resume_state_dict.get("tokenfeed", resume_state_dict))
    with ThreadPoolExecutor(1, "tokenfeed-states") as pool:
        states = pool.submit(gather, batches.state_dict(), feed.world_size, group)
        for batch in batches:
            pq_idx, rg_idx = _documents_of(batch)[-1, :2].tolist()
            place = {"pq_idx": pq_idx, "rg_idx": rg_idx, "epoch": batch.epoch + 1}  # which base_train prints
            before, states = states, pool.submit(_gather_after, batch, feed.world_size, group)
            yield batch.inputs, batch.targets, {"tokenfeed": before.result(), **place}


def _gather_after(batch: DeviceBatch, world_size: int, group: Any) -> list[Any]:
    return gather(batch.state, world_size, group)


def tokenizing_distributed_data_loader_bos_bestfit(
    tokenizer: Any,
    B: int,  # noqa: N803
    T: int,  # noqa: N803
    split: str,
    tokenizer_threads: int = 4,
    tokenizer_batch_size: int = 128,
    device: Any = "cuda",
    resume_state_dict: Any = None,
    buffer_size: int = 1000,
    **more: Any,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(inputs, targets) without end. Ranks do not talk to each other."""
    feed = _make_feed(tokenizer, B, T, split, tokenizer_threads, tokenizer_batch_size, buffer_size, **more)
    if resume_state_dict is not None:
        feed.load_state_dict(resume_state_dict.get("tokenfeed", resume_state_dict))
    for batch in to_device(feed, device, dtypes={"inputs": torch.long}):
        yield batch.inputs, batch.targets


def sft_data_generator_bos_bestfit(
    script: MutableMapping[str, Any], split: str, buffer_size: int = 100
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """nanochat's generator of `scripts/chat_sft.py`, where it works on the globals of the script. So it does here:

        sft_data_generator_bos_bestfit = functools.partial(nanochat.sft_data_generator_bos_bestfit, globals())

    It takes `args`, `tokenizer`, `device` and the datasets from there, and sets `last_step`, `approx_progress` and
    `current_epoch`. nanochat keeps 2,048 tokens of a conversation, whatever the length of rows; with rows that are
    longer, those are kept here that fit a row.
    """
    options, dataset = script["args"], script[f"{split}_dataset"]
    feed = stream_chat(
        dataset,
        as_tokenizer(script["tokenizer"]),
        batch_size=options.device_batch_size,
        length=options.max_seq_len,
        buffer_size=buffer_size,
        too_long="truncate" if options.max_seq_len >= _MOST_OF_A_CONVERSATION else "wait",
    )
    consumed = feed.rank
    for iteration, batch in enumerate(to_device(feed, script["device"]), 1):
        consumed += feed.world_size * len(_documents_of(batch))
        if split == "train":
            limited = options.num_iterations > 0
            ended = (limited and iteration >= options.num_iterations) or consumed >= len(dataset)
            script["current_epoch"] = batch.epoch + 1
            script["last_step"] = script["last_step"] or ended
            script["approx_progress"] = iteration / options.num_iterations if limited else consumed / len(dataset)
        assert batch.loss_mask is not None
        yield batch.inputs, batch.targets.masked_fill(~batch.loss_mask, -1)


def _documents_of(batch: DeviceBatch) -> Ints:
    """(file, row group, row, tokens before) of every piece of a document in the batch."""
    assert isinstance(batch.host, StreamBatch)
    return batch.host.documents
