"""nanochat's loaders under their own names, in one process: resumed, they go on with the batch that was fetched."""

import argparse
import functools
import json
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenfeed

torch = pytest.importorskip("torch")
tiktoken = pytest.importorskip("tiktoken")

from tokenfeed.integrations import nanochat  # noqa: E402

B, T = 2, 32


class NanochatTokenizer:
    """As nanochat's: an Encoding of tiktoken, and the id of BOS."""

    def __init__(self, tokenizer):
        vocabulary = tokenizer.vocabulary
        self.enc = tiktoken.Encoding(
            "test",
            pat_str=vocabulary.pattern,
            mergeable_ranks=dict(vocabulary.ranks),
            special_tokens=dict(vocabulary.special_tokens),
        )
        self._bos = tokenizer.bos_id

    def get_bos_token_id(self):
        return self._bos


@pytest.fixture(scope="module")
def tokenizer():
    return NanochatTokenizer(tokenfeed.Tokenizer.train(["Document speaks of things."] * 9, vocab_size=280))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for number in range(3):
        texts = [f"Document {number}.{row} speaks of {row} things." for row in range(120)]
        pq.write_table(pa.table({"text": texts}), folder / f"{number}.parquet", row_group_size=20)
    return [str(path) for path in sorted(folder.iterdir())]


def load(tokenizer, files, state=None, **options):
    return nanochat.tokenizing_distributed_data_loader_with_state_bos_bestfit(
        tokenizer, B, T, "train", device="cpu", resume_state_dict=state, buffer_size=20, files=files, **options
    )


def rows_of(loader, count):
    return [(x.tolist(), y.tolist()) for x, y, *_ in islice(loader, count)]


@pytest.mark.parametrize("overflow", ["crop", "split"])
def test_a_state_begins_with_its_batch(tokenizer, files, overflow):
    """base_train has fetched the batch when it saves, and trains on it after a resume. States go through JSON there."""
    expected, states = [], []
    for x, y, state in islice(load(tokenizer, files, overflow=overflow), 12):
        assert x.dtype == y.dtype == torch.int64
        expected.append((x.tolist(), y.tolist()))
        states.append(json.loads(json.dumps(state)))
    for step in (0, 5, 11):
        resumed = rows_of(load(tokenizer, files, states[step], overflow=overflow), 12 - step)
        assert resumed == expected[step:]
        assert states[step].keys() == {"tokenfeed", "pq_idx", "rg_idx", "epoch"}


def test_it_is_the_stream(tokenizer, files):
    ours = nanochat.as_tokenizer(tokenizer)
    options = {"sharding": "per_file", "overflow": "crop", "val": "last", "buffer_size": 20}
    for split in ("train", "val"):
        feed = tokenfeed.stream(files, ours, batch_size=B, length=T, split=split, **options)
        loader = nanochat.tokenizing_distributed_data_loader_bos_bestfit(
            tokenizer, B, T, split, device="cpu", buffer_size=20, files=files
        )
        assert rows_of(loader, 5) == [(x.tolist(), y.tolist()) for x, y in islice(feed, 5)]


def test_a_state_of_nanochat_is_taken(tokenizer, files):
    (first, *_), *_ = rows_of(load(tokenizer, files, {"pq_idx": 1, "rg_idx": 0, "epoch": 1}), 1)
    assert "Document 1.2" in nanochat.as_tokenizer(tokenizer).decode(first[0])


@pytest.mark.parametrize("num_iterations", [-1, 3])
def test_fine_tuning_sets_what_the_script_reads(tokenizer, num_iterations):
    messages = [
        [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}!" * 9}] for n in range(24)
    ]
    conversations = [{"messages": each} for each in messages]
    script = {
        "args": argparse.Namespace(device_batch_size=B, max_seq_len=64, num_iterations=num_iterations),
        "tokenizer": NanochatTokenizer(tokenfeed.Tokenizer.train(["one"] * 9, vocab_size=280)),
        "device": "cpu",
        "train_dataset": conversations,
        "val_dataset": conversations,
        "last_step": False,
        "approx_progress": 0.0,
        "current_epoch": 1,
    }
    generator = functools.partial(nanochat.sft_data_generator_bos_bestfit, script)
    next(generator("val", buffer_size=8))
    assert script["approx_progress"] == 0
    steps = 0
    for x, y in generator("train", buffer_size=8):
        steps += 1
        learned = y >= 0
        assert (x[:, 1:][learned[:, :-1]] == y[:, :-1][learned[:, :-1]]).all()
        assert 0 < learned.float().mean() < 1
        if script["last_step"]:
            break
    assert script["approx_progress"] >= 1
    assert num_iterations < 0 or steps == num_iterations
