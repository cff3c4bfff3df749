"""Slices made by tasks on a Ray cluster.

The driver keeps about two tasks per core of the cluster in flight, so that neither it nor Ray ever holds more. Ray
starts a task again elsewhere when its worker or node is lost. Tasks write shards and records themselves, so finished
slices survive the cluster and the driver.
"""

import os
from collections.abc import Generator, Sequence
from typing import Any

from tokenfeed.errors import DependencyError, WorkerError
from tokenfeed.preparation.engines import MAX_ATTEMPTS, TellTask
from tokenfeed.preparation.engines.failure import Failure
from tokenfeed.preparation.records import Counts, Record
from tokenfeed.preparation.slices import SliceMaker, Task, WorkerSetup
from tokenfeed.text.tokenizer.engines.workers import available_cores

__all__ = ["RayTasks"]

_WAIT_SECONDS = 0.2
_maker: tuple[str, SliceMaker] | None = None  # of this process: the tokenizer is made once for all tasks of a run


class RayTasks:
    """One task a slice.

    Uses the cluster that this process is connected to, else that of `RAY_ADDRESS` or the one running on this machine;
    else starts one here and stops it at the end.
    """

    def __init__(self, workers: int | None) -> None:
        """`workers` limits how many slices are made at a time."""
        self._workers = workers

    def run(self, setup: WorkerSetup, tasks: Sequence[Task], tell: TellTask) -> Generator[Record, None, None]:
        ray = _import_ray()
        is_ours = not ray.is_initialized()
        if is_ours:
            _connect(ray, self._workers)
        try:
            yield from self._run(ray, setup, tasks)
        finally:
            if is_ours:
                ray.shutdown()

    def _run(self, ray: Any, setup: WorkerSetup, tasks: Sequence[Task]) -> Generator[Record, None, None]:
        make = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(_make_slice)
        shared = ray.put(setup)
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


def _make_slice(run: str, setup: WorkerSetup, task: Task) -> Record | Failure:
    """In a worker of the cluster."""
    global _maker
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    try:
        if _maker is None or _maker[0] != run:
            _maker = run, SliceMaker(setup)
        return _maker[1].make(task, _say_nothing)
    except Exception as error:  # noqa: BLE001 (whatever it is, the driver raises it)
        return Failure.of(error)


def _say_nothing(counts: Counts) -> None:
    """Slices under way are not counted: each takes seconds."""


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise DependencyError("engine 'ray' needs Ray; pip install 'tokenfeed[ray]' here and on the cluster") from error
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
