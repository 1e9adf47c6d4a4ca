"""Who trains: one process, several, or Ray. The result depends on the job alone, so all give the same run."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from basecagg.errors import DataError
from basecagg.extras import require
from basecagg.learning import FlatModel, LocalTraining, LocalUpdate, Task, train_locally
from basecagg.schedules.schedule import Vector
from basecagg.simulation.config import SimulationConfig


@dataclass(frozen=True, eq=False)
class Job:
    """One local training: who, from which model, with which seed."""

    user: int
    start: Vector
    seed: int


class Trainer(Protocol):
    """Takes jobs when users start, and gives their updates when users finish."""

    def submit(self, job: Job) -> Callable[[], LocalUpdate]:
        """Begin a job; calling the result waits for it."""
        ...

    def close(self) -> None:
        """Stop all workers."""
        ...


class Worker:
    """Trains any user's model with one scratch model. One torch thread: more of them only get in the way."""

    def __init__(
        self,
        task: Task,
        training: LocalTraining,
        parts: list[npt.NDArray[np.int64]],
        scratch: FlatModel | None = None,
    ) -> None:
        """Keep the task and every user's examples. Without a scratch model, build one."""
        torch.set_num_threads(1)
        self._task = task
        self._training = training
        self._parts = parts
        self._model = scratch or task.build_model(seed=0)

    def train(self, job: Job) -> LocalUpdate:
        """Do the job."""
        return train_locally(
            self._task,
            self._model,
            job.start,
            self._parts[job.user],
            self._training,
            seed=job.seed,
            user=job.user,
        )


class InProcess:
    """Trains when the result is asked for."""

    def __init__(self, worker: Worker) -> None:
        """Train with this worker."""
        self._worker = worker

    def submit(self, job: Job) -> Callable[[], LocalUpdate]:
        """Nothing happens until the result is asked for."""
        return lambda: self._worker.train(job)

    def close(self) -> None:
        """Nothing to stop."""


_worker: Worker | None = None


def _start_worker(*arguments: Any) -> None:
    global _worker  # noqa: PLW0603 - a pool's processes have no other place to keep their worker
    serve_parent()
    _worker = Worker(*arguments)


def serve_parent() -> None:
    """For a pool's process, when it starts: Ctrl-C is the parent's to answer, and its end is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool outlives a parent that was killed, unless its processes look."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _train_in_pool(job: Job) -> LocalUpdate:
    assert _worker is not None
    return _worker.train(job)


class Processes:
    """Trains users side by side in processes of their own."""

    def __init__(self, workers: int, task: Task, *arguments: Any) -> None:
        """Start the processes; each gets its own copy of the task."""
        _require_portable(task)
        self._pool = ProcessPoolExecutor(
            workers or os.cpu_count(), get_context("spawn"), _start_worker, (task, *arguments)
        )

    def submit(self, job: Job) -> Callable[[], LocalUpdate]:
        """Begin at once."""
        return self._pool.submit(_train_in_pool, job).result

    def close(self) -> None:
        """Stop the processes."""
        self._pool.shutdown(cancel_futures=True)


def _require_portable(task: Task) -> None:
    try:
        pickle.dumps((task.model, task.loss, task.score))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise DataError(
            f"task '{task.name}' cannot be sent to other processes ({error}): make its model, loss and"
            " score functions of a module, or use executor 'in-process'"
        ) from None


class Ray:
    """Trains users on a Ray cluster: a local one, or an existing one by its address."""

    def __init__(self, workers: int, address: str, *arguments: Any) -> None:
        """Connect, and start one actor per worker."""
        self._ray = require("ray", extra="ray", needed_for="executor 'ray'")
        count = workers or os.cpu_count() or 1
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns
        self._ray.init(
            address=address or None,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
        actor = self._ray.remote(num_cpus=1)(Worker)
        shared = [self._ray.put(argument) for argument in arguments]
        self._actors = [actor.remote(*shared) for _ in range(count)]
        self._next = 0

    def submit(self, job: Job) -> Callable[[], LocalUpdate]:
        """Give the job to the next actor in turn."""
        actor = self._actors[self._next % len(self._actors)]
        self._next += 1
        reference = actor.train.remote(job)
        return lambda: self._ray.get(reference)

    def close(self) -> None:
        """Leave the cluster; a local one stops."""
        self._ray.shutdown()


def make_trainer(
    config: SimulationConfig,
    scratch: FlatModel,
    task: Task,
    training: LocalTraining,
    parts: list[npt.NDArray[np.int64]],
) -> Trainer:
    """The trainer that the configuration names.

    In this process it trains with the scratch model, which others may load between two jobs.
    """
    if config.executor == "processes":
        return Processes(config.workers, task, training, parts)
    if config.executor == "ray":
        return Ray(config.workers, config.ray_address, task, training, parts)
    return InProcess(Worker(task, training, parts, scratch))
