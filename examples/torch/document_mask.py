"""Packed rows through attention that does not cross documents: the same as every document alone.

Whole documents share a row (`store.packed`): only what is longer than a row is cut, and hardly anything is padding. A
model must keep them apart: `batch.spans["documents"]` has numbers for a mask, and positions; `loss_mask` leaves out
targets that belong to the next document. Checked here with FlexAttention, and with a plain mask for SDPA.
"""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import cross_entropy, embedding, scaled_dot_product_attention

import tokenfeed

LENGTH, WIDTH, HEADS, VOCABULARY = 128, 64, 4, 97


class Model(torch.nn.Module):
    """One layer of attention over tokens and positions; what attention is, is an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Parameter(torch.randn(VOCABULARY, WIDTH))
        self.positions = torch.nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.project = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, positions, attend):
        x = embedding(tokens, self.tokens) + embedding(positions, self.positions)
        q, k, v = self.project(x).view(*x.shape[:2], HEADS, 3 * WIDTH // HEADS).transpose(1, 2).chunk(3, dim=-1)
        mixed = attend(q, k, v).transpose(1, 2).reshape(x.shape)
        return self.head(x + mixed)


def write(path: Path) -> None:
    """Documents of 33 tokens in the middle, some of them longer than a row."""
    rng = np.random.default_rng(0)
    with tokenfeed.Writer(path, columns={"tokens": "uint16"}, spans={"documents": None}) as writer:
        for length in np.maximum(1, rng.lognormal(3.5, 1.0, 400)).astype(int):
            writer.append({"tokens": rng.integers(0, VOCABULARY, length)})


def by_flex(document_ids):
    """FlexAttention as it is; `torch.compile(flex_attention)` skips what the mask leaves out."""
    warnings.filterwarnings("ignore", "flex_attention called without torch.compile")

    def causal_within_document(batch, head, query, key):
        return (query >= key) & (document_ids[batch, query] == document_ids[batch, key])

    rows, length = document_ids.shape
    mask = create_block_mask(causal_within_document, rows, None, length, length, device="cpu")
    return lambda q, k, v: flex_attention(q, k, v, block_mask=mask)


def by_mask(document_ids):
    """Scaled dot-product attention with a mask of (rows, 1, length, length)."""
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    mask = same & torch.ones(same.shape[-2:], dtype=torch.bool).tril()
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "store"))
        store = tokenfeed.open(Path(folder, "store"))
        report = store.pack(LENGTH)
        print(f"{report.documents} documents in {report.rows} rows, {report.used:.2%} of all positions used")
        batch = next(tokenfeed.Loader(store.packed(LENGTH, spans=["documents"]), 16))
    spans = batch.spans["documents"]
    inputs, targets = (torch.from_numpy(each).long() for each in batch)
    positions, document_ids = (torch.from_numpy(f()) for f in (spans.position_ids, spans.document_ids))
    mask = torch.from_numpy(batch.loss_mask)

    alone = torch.zeros(*inputs.shape, VOCABULARY)
    for row in range(len(batch)):
        for span in spans[row]:
            place = slice(span.start, min(span.stop, LENGTH))
            document, first = inputs[row : row + 1, place], positions[row : row + 1, place]
            attend = lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
            alone[row, place] = model(document, first, attend)[0]
    is_item = torch.from_numpy(batch.span_numbers("documents")[:, :-1] >= 0)
    for name, attend in (("FlexAttention", by_flex(document_ids)), ("SDPA with a mask", by_mask(document_ids))):
        logits = model(inputs, positions, attend)
        difference = (logits - alone)[is_item].abs().max().item()
        loss = cross_entropy(logits[mask], targets[mask]).item()
        print(f"{name}: max abs difference from each document alone {difference:.1e}, loss {loss:.4f}")
        assert difference < 1e-4, "attention crossed a document"


if __name__ == "__main__":
    main()
