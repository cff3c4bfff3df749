"""Bits per byte: what nanochat computes from the same losses."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from any_tokenizers import write
from golden import GOLDEN, golden_tokenizer
from tokenfeed.errors import ArgumentError
from tokenfeed.text.tokenizer.tokenizer import Tokenizer
from tokenfeed.torch import evaluate_bpb

RECORDED = json.loads((GOLDEN / "bpb.json").read_text())


def fake_loss(inputs, targets, loss_reduction):
    assert loss_reduction == "none"
    return ((31 * inputs + 17 * targets) % 1009).float() / 128


def recorded_batches(*, masked=False):
    with np.load(GOLDEN / "runs" / "bestfit_val_w1_r0.npz") as arrays:
        inputs, targets = arrays["inputs"], arrays["targets"].astype(np.int64)
    if masked:
        targets[:, :, ::3] = -1
    return list(zip(inputs, targets, strict=True))


def tensors(batches):
    return [(torch.tensor(inputs.astype(np.int64)), torch.tensor(targets)) for inputs, targets in batches]


@pytest.mark.parametrize(("masked", "key"), [(False, "bpb"), (True, "bpb_masked")])
@pytest.mark.parametrize("kind", ["tensors", "arrays"])
@pytest.mark.parametrize("table", ["array", "tensor"])
def test_what_nanochat_recorded(masked, key, kind, table):
    batches = recorded_batches(masked=masked)
    if kind == "tensors":
        batches = tensors(batches)
    token_bytes = golden_tokenizer().token_bytes
    if table == "tensor":
        token_bytes = torch.tensor(np.array(token_bytes))
    found = evaluate_bpb(fake_loss, batches, RECORDED["steps"], token_bytes)
    assert found == pytest.approx(RECORDED[key], rel=1e-12)


def test_only_as_many_batches_as_asked_for():
    batches = iter(tensors(recorded_batches()))
    evaluate_bpb(fake_loss, batches, 4, golden_tokenizer().token_bytes)
    assert len(list(batches)) == 6
    with pytest.raises(ArgumentError, match="batches ended after 2; steps is 3"):
        evaluate_bpb(fake_loss, tensors(recorded_batches())[:2], 3, golden_tokenizer().token_bytes)
    with pytest.raises(ArgumentError, match="steps is 0"):
        evaluate_bpb(fake_loss, [], 0, golden_tokenizer().token_bytes)


def test_what_counts_neither_way():
    """A loss that is not a number does not matter where its target stands for no bytes."""
    token_bytes = np.array([0, 2, 3], np.int32)
    losses = torch.tensor([[math.nan, 4.0, math.inf, 6.0]])
    targets = torch.tensor([[0, 1, -1, 2]])
    found = evaluate_bpb(lambda inputs, targets, loss_reduction: losses, [(targets, targets)], 1, token_bytes)
    assert found == pytest.approx(10 / (math.log(2) * 5))
    nothing = torch.tensor([[0, -1, -100, 0]])
    assert evaluate_bpb(lambda x, y, loss_reduction: losses.view(-1), [(nothing, nothing)], 1, token_bytes) == math.inf


def test_arrays_go_where_the_model_is():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(4096, 1, device="meta")

        def forward(self, inputs, targets, loss_reduction):
            assert inputs.device.type == targets.device.type == "meta"
            return torch.ones(targets.shape)

    with pytest.raises(NotImplementedError):  # a tensor without data cannot come back
        evaluate_bpb(Model(), recorded_batches(), 1, golden_tokenizer().token_bytes)


def test_gradients_are_not_kept():
    weight = torch.ones((), requires_grad=True)
    kept = []

    def model(inputs, targets, loss_reduction):
        kept.append(weight * fake_loss(inputs, targets, loss_reduction))
        return kept[-1]

    evaluate_bpb(model, tensors(recorded_batches()), 2, golden_tokenizer().token_bytes)
    assert not any(loss.requires_grad for loss in kept)


@pytest.mark.slow
def test_ranks_count_together(tmp_path):
    """Two processes with every other batch get what one gets with all."""
    code = f"""
import sys, torch.distributed as dist
from golden import golden_tokenizer
from test_bits import fake_loss, recorded_batches, tensors
from tokenfeed.torch import evaluate_bpb
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{tmp_path}/meet", rank=rank, world_size=2)
print(repr(evaluate_bpb(fake_loss, tensors(recorded_batches())[rank::2], 5, golden_tokenizer().token_bytes)))
dist.destroy_process_group()
"""
    here = Path(__file__).parent
    paths = f"{here}:{here.parents[1]}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
        for rank in range(2)
    ]
    for rank in ranks:
        out, _ = rank.communicate(timeout=120)
        assert rank.returncode == 0
        assert float(out) == pytest.approx(RECORDED["bpb"], rel=1e-12)


def test_spaces_that_a_tokenizer_puts_before_documents_are_no_bytes(tmp_path):
    """As with SentencePiece: three documents of a text are three times its bytes, not one more for each."""
    tokenizer = Tokenizer.load(write("llama", tmp_path))
    texts = ["the same", " zukagidte Größe €", "x"]
    tokens = torch.tensor(tokenizer.encode_batch(texts, prepend="<s>", append="</s>")[0].astype(np.int64))
    batches = [(tokens[None, :-1], tokens[None, 1:])]

    def loss(inputs, targets, loss_reduction):
        return torch.ones(targets.shape)

    num_bytes = sum(len(text.encode()) for text in texts)
    counted = int((tokenizer.token_bytes[tokens[1:].numpy()] > 0).sum())
    assert evaluate_bpb(loss, batches, 1, tokenizer) == pytest.approx(counted / (math.log(2) * num_bytes))
    more = evaluate_bpb(loss, batches, 1, tokenizer.token_bytes)
    assert more == pytest.approx(counted / (math.log(2) * (num_bytes + len(texts))))
    golden = golden_tokenizer()
    plain = [evaluate_bpb(fake_loss, recorded_batches(), 3, each) for each in (golden, golden.token_bytes)]
    assert plain[0] == plain[1]
