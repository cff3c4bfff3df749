"""Slices made by tasks on a Ray cluster.

The driver keeps about two tasks per core of the cluster in flight, so that neither it nor Ray ever holds more. Ray
starts a task again elsewhere when its worker or node is lost. Tasks write shards and records themselves, so finished
slices survive the cluster and the driver.
"""

import os
from collections.abc import Generator, Sequence
from typing import Any

from tokenfeed.errors import DependencyError, WorkerError
from tokenfeed.preparation.documents import SliceMaker, Task, WorkerSetup
from tokenfeed.preparation.engines import MAX_ATTEMPTS, Failure, TellTask, attempt
from tokenfeed.preparation.records import Record
from tokenfeed.storage.credentials import portable
from tokenfeed.text.tokenizer.engines import available_cores

__all__ = ["run_on_ray"]

_WAIT_SECONDS = 0.2
_makers: dict[str, SliceMaker] = {}  # of this process and one run: the tokenizer is made once for all its tasks


def run_on_ray(
    workers: int | None, setup: WorkerSetup, tasks: Sequence[Task], tell: TellTask
) -> Generator[Record, None, None]:
    """One task a slice, `workers` at a time at most.

    Uses the cluster that this process is connected to, else that of `RAY_ADDRESS` or the one running on this machine;
    else starts one here and stops it at the end. Slices under way are not told: each takes seconds.
    """
    try:
        import ray
    except ImportError as error:
        raise DependencyError("engine 'ray' needs Ray; pip install 'tokenfeed[ray]' here and on the cluster") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, workers)
    try:
        yield from _run(ray, workers, setup, tasks)
    finally:
        if is_ours:
            ray.shutdown()


def _run(ray: Any, workers: int | None, setup: WorkerSetup, tasks: Sequence[Task]) -> Generator[Record, None, None]:
    make = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1)(_make_slice)
    shared = ray.put((setup, portable()))  # not by `runtime_env`, which Ray writes to its logs
    run = os.urandom(8).hex()
    waiting = iter(tasks)
    in_flight: dict[Any, Task] = {}
    try:
        while True:
            room = workers or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while len(in_flight) < room and (task := next(waiting, None)) is not None:
                in_flight[make.options(name=task.name).remote(run, shared, task)] = task
            if not in_flight:
                return
            done, _ = ray.wait(list(in_flight), timeout=_WAIT_SECONDS)
            for reference in done:
                yield _get(ray, reference, in_flight.pop(reference))
    finally:
        for reference in in_flight:
            ray.cancel(reference, force=True)


def _get(ray: Any, reference: Any, task: Task) -> Record:
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


def _make_slice(run: str, shared: tuple[WorkerSetup, dict[str, str | None]], task: Task) -> Record | Failure:
    """In a worker of the cluster, with the driver's credentials."""
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    setup, variables = shared

    def get_maker() -> SliceMaker:
        if run not in _makers:
            os.environ.update({name: value for name, value in variables.items() if value is not None})
            for name in (name for name, value in variables.items() if value is None):
                os.environ.pop(name, None)
            _makers.clear()
            _makers[run] = SliceMaker(setup)
        return _makers[run]

    return attempt(get_maker, task, lambda counts: None)


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
