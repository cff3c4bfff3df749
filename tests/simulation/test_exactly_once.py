"""Ten million samples of a plan, in the kernels: `python tests/simulation/exactly_once.py` takes a thousand million."""

import numpy as np

from simulation.exactly_once import check, enumerate_once
from tiers import pick


def test_every_sample_comes_once(capsys):
    assert check(pick(1_000_000, 10_000_000))
    assert capsys.readouterr().out.count("0 repeated, 0 missing") == 3


def test_what_comes_twice_is_counted():
    def one_twice(samples):
        return np.where(samples == 99_999, 7, samples)

    assert enumerate_once(3_000_000, one_twice) == (1, 1)
    assert enumerate_once(100, lambda samples: samples + 1) == (1, 1)
