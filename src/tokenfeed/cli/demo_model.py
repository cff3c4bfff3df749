"""The model that `tokenfeed demo` trains: predicts a token from the eight before it. Needs only NumPy."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["TinyModel"]

Weights = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.integer[Any]]

_CONTEXT = 8
_WIDTH = 32
_HIDDEN = 128
_DECAYS = 0.9, 0.99


class TinyModel:
    """Embeddings of the context, one hidden layer, a softmax over the vocabulary; trained with Adam."""

    def __init__(self, vocab_size: int, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)

        def normal(*shape: int) -> Weights:
            return (rng.standard_normal(shape) / math.sqrt(shape[0])).astype(np.float32)

        self.parameters = [
            normal(vocab_size, _WIDTH) * np.float32(math.sqrt(vocab_size)),
            normal(_CONTEXT * _WIDTH, _HIDDEN),
            normal(_HIDDEN, vocab_size) * np.float32(0.1),
        ]
        self._moments = [(np.zeros_like(each), np.zeros_like(each)) for each in self.parameters]
        self._steps = 0

    @property
    def size(self) -> int:
        return sum(each.size for each in self.parameters)

    def train(self, inputs: Tokens, targets: Tokens, *, rate: float = 1e-2) -> float:
        """Train one step. Returns the loss before it, in nats per token."""
        embed, first, second = self.parameters
        contexts, wanted = _contexts(inputs), targets.reshape(-1).astype(np.intp)
        rows = np.arange(wanted.size)
        seen, hidden, guess = self._run(contexts)
        loss = float(-np.log(guess[rows, wanted] + 1e-30).mean())
        guess[rows, wanted] -= 1
        guess /= wanted.size
        back = (guess @ second.T) * (1 - hidden * hidden)
        to_embed = _add_up(contexts.reshape(-1), (back @ first.T).reshape(-1, _WIDTH), len(embed))
        self._descend([to_embed, seen.T @ back, hidden.T @ guess], rate)
        return loss

    def _run(self, contexts: npt.NDArray[np.intp]) -> tuple[Weights, Weights, Weights]:
        """(embedded contexts, hidden layer, distribution)."""
        embed, first, second = self.parameters
        seen = embed[contexts].reshape(len(contexts), -1)
        hidden = np.tanh(seen @ first)
        guess = hidden @ second
        guess -= guess.max(axis=1, keepdims=True)
        np.exp(guess, out=guess)
        guess /= guess.sum(axis=1, keepdims=True)
        return seen, hidden, guess

    def _descend(self, gradients: list[Weights], rate: float) -> None:
        self._steps += 1
        slow, slower = _DECAYS
        for each, gradient, (mean, square) in zip(self.parameters, gradients, self._moments, strict=True):
            mean += (1 - slow) * (gradient - mean)
            square += (1 - slower) * (gradient * gradient - square)
            step = mean / (1 - slow**self._steps)
            each -= rate * step / (np.sqrt(square / (1 - slower**self._steps)) + 1e-8)

    def bits_per_byte(self, inputs: Tokens, targets: Tokens, token_bytes: npt.NDArray[Any]) -> float:
        """Bits per byte of text; targets that stand for no bytes do not count."""
        wanted = targets.reshape(-1).astype(np.intp)
        guess = self._run(_contexts(inputs))[2][np.arange(wanted.size), wanted]
        counts = token_bytes[wanted] > 0
        nats = -float(np.log(guess[counts] + 1e-30).sum())
        return nats / math.log(2) / max(1.0, float(token_bytes[wanted].sum()))


def _contexts(inputs: Tokens) -> npt.NDArray[np.intp]:
    """Each token of (rows, length) with the seven before it; token 0 stands for tokens before the first."""
    padded = np.pad(inputs.astype(np.intp), ((0, 0), (_CONTEXT - 1, 0)))
    return np.lib.stride_tricks.sliding_window_view(padded, _CONTEXT, axis=1).reshape(-1, _CONTEXT)


def _add_up(tokens: npt.NDArray[np.intp], rows: Weights, vocab_size: int) -> Weights:
    """Sum of the rows of each token of the vocabulary, by columns: ten times as fast as `np.add.at`."""
    sums = [np.bincount(tokens, column, vocab_size) for column in rows.T]
    return np.stack(sums, axis=1).astype(np.float32)
