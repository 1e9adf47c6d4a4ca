"""Who trains: one process, several, or Ray. The result depends on the job alone, so all give the same run."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from multiprocessing import get_context, parent_process
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from basecagg.errors import DataError
from basecagg.extras import require
from basecagg.learning import FlatModel, LocalTraining, LocalUpdate, Task, train_locally
from basecagg.schedules.schedule import Vector
from basecagg.simulation.config import SimulationConfig

Memory: TypeAlias = Mapping[str, npt.NDArray[np.float32]]
"""What one user's client keeps from one training to the next."""


class Trainer(NamedTuple):
    """Takes jobs when users start, and gives their updates when users finish."""

    submit: Callable[[int, Vector, int, Memory], Callable[[], LocalUpdate]]
    """Begin a job: who trains, from which model, with which seed and memory; the result waits for its end."""
    close: Callable[[], None]
    """Stop all workers."""


@dataclass(eq=False)
class Worker:
    """Trains any user's model with one scratch model, built here unless it is lent."""

    task: Task
    training: LocalTraining
    parts: list[npt.NDArray[np.int64]]
    """Every user's examples."""
    device: str = "cpu"
    scratch: FlatModel | None = None

    def __post_init__(self) -> None:
        """One torch thread: more of them only get in the way."""
        torch.set_num_threads(1)
        self._model = self.scratch or self.task.build_model(0, self.device)

    def train(self, user: int, start: Vector, seed: int, memory: Memory) -> LocalUpdate:
        """Do a job."""
        return train_locally(
            self.task,
            self._model,
            start,
            self.parts[user],
            self.training,
            seed=seed,
            user=user,
            memory=memory,
        )


@contextmanager
def threads_as_before() -> Iterator[None]:
    """Users in this process train with one thread of torch; the program that called may want its own again."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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


def _train_in_pool(user: int, start: Vector, seed: int, memory: Memory) -> LocalUpdate:
    assert _worker is not None
    return _worker.train(user, start, seed, memory)


def _in_processes(
    workers: int | None, task: Task, training: LocalTraining, *arguments: Any
) -> Trainer:
    """Users side by side in processes of their own; each gets its own copy of the task."""
    _require_portable(task, training)
    pool = ProcessPoolExecutor(
        workers or os.cpu_count(), get_context("spawn"), _start_worker, (task, training, *arguments)
    )
    return Trainer(
        lambda *job: pool.submit(_train_in_pool, *job).result,
        lambda: pool.shutdown(cancel_futures=True),
    )


def _require_portable(task: Task, training: LocalTraining) -> None:
    try:
        pickle.dumps((task.model, task.loss, task.score, training.client))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise DataError(
            f"task '{task.name}' cannot be sent to other processes ({error}): make its model, loss and"
            " score functions of a module, its client a class of one, or use executor 'in-process'"
        ) from None


def _on_ray(workers: int | None, address: str | None, *arguments: Any) -> Trainer:
    """Users on a Ray cluster, a local one or an existing one by its address: each goes to the next actor."""
    ray = require("ray", extra="ray", needed_for="executor 'ray'")
    count = workers or os.cpu_count() or 1
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns
    ray.init(
        address=address,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    actor = ray.remote(num_cpus=1)(Worker)
    shared = [ray.put(argument) for argument in arguments]
    actors = cycle([actor.remote(*shared) for _ in range(count)])
    return Trainer(lambda *job: partial(ray.get, next(actors).train.remote(*job)), ray.shutdown)


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
        return _in_processes(config.workers, task, training, parts, config.device)
    if config.executor == "ray":
        return _on_ray(config.workers, config.ray_address, task, training, parts, config.device)
    worker = Worker(task, training, parts, config.device, scratch)
    return Trainer(lambda *job: partial(worker.train, *job), lambda: None)
