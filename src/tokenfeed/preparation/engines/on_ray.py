"""Slices made by tasks on a Ray cluster.

The driver keeps about two tasks per core of the cluster in flight, so that neither it nor Ray ever holds more. A task
whose worker or node is lost is begun again by Ray, elsewhere. Tasks write shards and records themselves, so that what
is done is not lost with the cluster or the driver.
"""

import os
from collections.abc import Generator, Sequence
from typing import Any

from tokenfeed.errors import ArgumentError, WorkerError
from tokenfeed.preparation.engines import MAX_ATTEMPTS, TellTask
from tokenfeed.preparation.engines.failure import Failure
from tokenfeed.preparation.records import Counts, Record
from tokenfeed.preparation.slices import Job, SliceMaker, Task
from tokenfeed.text.tokenizer.engines.workers import available_cores

__all__ = ["RayTasks"]

_WAIT_SECONDS = 0.2
_maker: tuple[str, SliceMaker] | None = None  # of this process: the tokenizer is made once for all tasks of a run


class RayTasks:
    """One task a slice. Uses the cluster this process is connected to, else that of `RAY_ADDRESS` or the one running
    on this machine, else starts one here and stops it in the end."""

    def __init__(self, workers: int | None) -> None:
        """`workers` limits how many slices are made at a time."""
        self._workers = workers

    def run(self, job: Job, tasks: Sequence[Task], tell: TellTask) -> Generator[Record, None, None]:
        ray = _import_ray()
        is_ours = not ray.is_initialized()
        if is_ours:
            _connect(ray, self._workers)
        try:
            yield from self._run(ray, job, tasks)
        finally:
            if is_ours:
                ray.shutdown()

    def _run(self, ray: Any, job: Job, tasks: Sequence[Task]) -> Generator[Record, None, None]:
        make = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(_make_slice)
        shared = ray.put(job)
        run = os.urandom(8).hex()
        waiting = iter(tasks)
        in_flight: dict[Any, Task] = {}
        try:
            while True:
                room = self._workers or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
                while len(in_flight) < room and (task := next(waiting, None)) is not None:
                    in_flight[make.options(name=task.name).remote(run, shared, task)] = task
                if not in_flight:
                    return
                done, _ = ray.wait(list(in_flight), timeout=_WAIT_SECONDS)
                for reference in done:
                    yield self._get(ray, reference, in_flight.pop(reference))
        finally:
            for reference in in_flight:
                ray.cancel(reference, force=True)

    def _get(self, ray: Any, reference: Any, task: Task) -> Record:
        try:
            result = ray.get(reference)
        except ray.exceptions.RayError as error:
            raise WorkerError(
                f"{task.name} was given up after {MAX_ATTEMPTS} attempts on the Ray cluster: {type(error).__name__}: "
                f"{str(error).strip().splitlines()[0]} What was done is kept: run it again to go on."
            ) from error
        if isinstance(result, Failure):
            raise result.rebuild()
        assert isinstance(result, Record)
        return result


def _make_slice(run: str, job: Job, task: Task) -> Record | Failure:
    """In a worker of the cluster."""
    global _maker
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    try:
        if _maker is None or _maker[0] != run:
            _maker = run, SliceMaker(job)
        return _maker[1].make(task, _say_nothing)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
        return Failure.of(error)


def _say_nothing(counts: Counts) -> None:
    """What is under way is not counted: a slice takes seconds."""


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ArgumentError("engine 'ray' needs Ray; pip install 'tokenfeed[ray]' here and on the cluster") from error
    return ray


def _connect(ray: Any, workers: int | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), **quiet)
    except ConnectionError as error:
        if "RAY_ADDRESS" in os.environ:
            raise WorkerError(
                f"no Ray cluster answers at {os.environ['RAY_ADDRESS']} (RAY_ADDRESS): {error}. Unset it to start one "
                "here."
            ) from error
        ray.init(num_cpus=workers or available_cores(), include_dashboard=False, **quiet)
