"""The model that `tokenfeed demo` trains: predicts a token from the eight before it. Needs only NumPy."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.integer[Any]]

_CONTEXT = 8
_HIDDEN = 64


class TinyModel:
    """A table of vectors for each position of the context, their sum through tanh, a softmax; trained with Adagrad."""

    def __init__(self, vocab_size: int) -> None:
        rng = np.random.default_rng(0)
        shapes = (_CONTEXT, vocab_size, _HIDDEN), (_HIDDEN, vocab_size)
        self.parameters = [(0.1 * rng.standard_normal(shape)).astype(np.float32) for shape in shapes]
        self._squares = [np.full_like(each, 1e-8) for each in self.parameters]

    def train(self, inputs: Tokens, targets: Tokens, *, rate: float = 0.05) -> float:
        """Train one step. Returns the loss before it, in nats per token."""
        tables, last = self.parameters
        contexts, wanted = _contexts(inputs), targets.reshape(-1).astype(np.intp)
        hidden, guess = self._run(contexts)
        rows = np.arange(wanted.size)
        loss = float(-np.log(guess[rows, wanted] + 1e-30).mean())
        guess[rows, wanted] -= 1
        guess /= wanted.size
        back = (guess @ last.T) * (1 - hidden * hidden)
        # By columns: ten times as fast as `np.add.at`.
        of_tables = [
            np.stack([np.bincount(column, each, len(tables[0])) for each in back.T], axis=1) for column in contexts.T
        ]
        gradients = np.array(of_tables, np.float32), hidden.T @ guess
        for weights, gradient, square in zip(self.parameters, gradients, self._squares, strict=True):
            square += gradient * gradient
            weights -= rate * gradient / np.sqrt(square)
        return loss

    def _run(self, contexts: npt.NDArray[np.intp]) -> tuple[Weights, Weights]:
        """(hidden layer, distribution)."""
        tables, last = self.parameters
        hidden = np.tanh(sum(table[column] for table, column in zip(tables, contexts.T, strict=True)))
        guess = hidden @ last
        guess = np.exp(guess - guess.max(axis=1, keepdims=True))
        return hidden, guess / guess.sum(axis=1, keepdims=True)

    def bits_per_byte(self, inputs: Tokens, targets: Tokens, token_bytes: npt.NDArray[Any]) -> float:
        """Bits per byte of text; targets that stand for no bytes do not count."""
        wanted = targets.reshape(-1).astype(np.intp)
        guess = self._run(_contexts(inputs))[1][np.arange(wanted.size), wanted]
        nats = -float(np.log(guess[token_bytes[wanted] > 0] + 1e-30).sum())
        return nats / math.log(2) / max(1.0, float(token_bytes[wanted].sum()))


def _contexts(inputs: Tokens) -> npt.NDArray[np.intp]:
    """Each token of (rows, length) with the seven before it; token 0 stands for tokens before the first."""
    padded = np.pad(inputs.astype(np.intp), ((0, 0), (_CONTEXT - 1, 0)))
    return np.lib.stride_tricks.sliding_window_view(padded, _CONTEXT, axis=1).reshape(-1, _CONTEXT)
