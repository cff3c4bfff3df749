"""The batch sampler of Megatron-LM's and nanotron's training loops: in order, from the sample that was consumed last.

Neither is part of the package that has the dataset, so it is written here after their description.
"""

from collections.abc import Iterator

from tokens import Job


class ConsumedSampler:
    """Every step takes `rows` × `world_size` samples, of which a rank has a run of `rows`."""

    def __init__(self, num_samples: int, job: Job) -> None:
        self.num_samples = num_samples
        self.job = job
        self.consumed = job.state or 0

    def __iter__(self) -> Iterator[list[int]]:
        rows, rank = self.job.rows, self.job.rank
        step = rows * self.job.world_size
        start = self.consumed
        while start + step <= self.num_samples:
            yield list(range(start + rank * rows, start + (rank + 1) * rows))
            start += step
