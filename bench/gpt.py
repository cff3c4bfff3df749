"""A GPT to feed, and the steps that train it. Needs torch."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["VOCABULARY", "Trainer"]

VOCABULARY = 50_304

try:  # torch 2.10
    from torch.nn.attention.varlen import varlen_attn

    CAUSAL: dict[str, Any] = (
        {"is_causal": True} if "is_causal" in signature(varlen_attn).parameters else {"window_size": (-1, 0)}
    )
except ImportError:
    varlen_attn, CAUSAL = None, {}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attend, self.feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, bounds: torch.Tensor | None, longest: int) -> torch.Tensor:
        parts = (part.unflatten(-1, (self.heads, -1)) for part in self.qkv(self.attend(x)).chunk(3, -1))
        mixed = attend_rows(*parts) if bounds is None else attend_documents(*parts, bounds, longest)
        x = x + self.project(mixed.flatten(-2))
        return x + self.down(functional.gelu(self.up(self.feed(x))))


def attend_rows(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention within rows: (rows, length, heads, width)."""
    turned = (each.transpose(-3, -2) for each in (query, key, value))
    return functional.scaled_dot_product_attention(*turned, is_causal=True).transpose(-3, -2)


def attend_documents(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: torch.Tensor, longest: int
) -> torch.Tensor:
    """Causal attention within documents laid end to end: (total, heads, width). One by one on a processor."""
    if query.is_cuda:
        return varlen_attn(query, key, value, bounds, bounds, longest, longest, **CAUSAL)
    sizes = bounds.diff().tolist()
    pieces = zip(*(each.split(sizes) for each in (query, key, value)), strict=True)
    return torch.cat([attend_rows(*piece) for piece in pieces])


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.length = length
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        positions: torch.Tensor | None = None,
        bounds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mean loss over targets but −1. `bounds` are those of documents, where they are laid end to end."""
        places = self.places.weight[: inputs.shape[-1]] if positions is None else self.places(positions)
        x = self.tokens(inputs) + places
        for block in self.blocks:
            x = block(x, bounds, self.length)
        logits = self.norm(x) @ self.tokens.weight.T
        return functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=-1)


class Trainer:
    """A model with its optimizer: bf16 and compiled on a GPU, plain on a processor."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        length: int,
        *,
        device: str = "cuda",
        rate: float = 6e-4,
        seed: int = 0,
        dynamic: bool | None = None,
        vocabulary: int = VOCABULARY,
    ) -> None:
        """`dynamic` is for batches whose shapes differ."""
        torch.manual_seed(seed)
        self.device = device
        self.model = Gpt(layers, width, heads, length, vocabulary).to(device)
        is_cuda = device == "cuda"
        self._forward = torch.compile(self.model, dynamic=dynamic) if is_cuda else self.model
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, betas=(0.9, 0.95), fused=is_cuda)
        self._schedule = torch.optim.lr_scheduler.LinearLR(self._optimizer, 0.01, total_iters=100)

    def _precision(self) -> Any:
        return torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else nullcontext()

    def step(self, *batch: torch.Tensor) -> torch.Tensor:
        """Train on inputs and targets; and where documents are laid end to end, on their positions and bounds."""
        with self._precision():
            loss = self._forward(*batch)
        loss.backward()
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        with self._precision():
            return torch.stack([self._forward(*batch) for batch in batches]).mean().item()

    def run(self, batches: Iterator[Any], steps: int) -> dict[str, float]:
        """Seconds a step, and what share of it the GPU waited for the next batch by its own clock."""
        marks = []
        torch.cuda.synchronize()
        began = time.perf_counter()
        in_next = 0.0
        for _ in range(steps):
            asked, came = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            asked.record()
            before = time.perf_counter()
            inputs, targets = next(batches)
            in_next += time.perf_counter() - before
            came.record()
            marks.append((asked, came))
            self.step(inputs, targets)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        waited = sum(asked.elapsed_time(came) for asked, came in marks) / 1000
        return {"step_s": seconds / steps, "wait_share": waited / seconds, "host_next_us": in_next / steps * 1e6}
