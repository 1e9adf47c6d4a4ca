"""Learning in PyTorch: models as one vector, data, partitions, local SGD. Knows nothing of the protocol."""

from basecagg.extras import require

require("torch", extra="learn", needed_for="training models")

from basecagg.learning.adapters import save_adapter  # noqa: E402
from basecagg.learning.clients import CLIENTS, LOCAL_OPTIMISERS, Client, Work  # noqa: E402
from basecagg.learning.datasets import DATASETS, Dataset, load_dataset  # noqa: E402
from basecagg.learning.flat_parameters import FlatModel  # noqa: E402
from basecagg.learning.local_training import (  # noqa: E402
    Evaluation,
    LocalTraining,
    LocalUpdate,
    evaluate,
    train_locally,
)
from basecagg.learning.models import MODELS, build_model  # noqa: E402
from basecagg.learning.partition import PARTITIONS, Deal, label_counts, partition  # noqa: E402
from basecagg.learning.record_updates import record_update  # noqa: E402
from basecagg.learning.task import Task, accuracy, built_in_task, derive_seed, seeded  # noqa: E402

__all__ = [
    "CLIENTS",
    "DATASETS",
    "LOCAL_OPTIMISERS",
    "MODELS",
    "PARTITIONS",
    "Client",
    "Dataset",
    "Deal",
    "Evaluation",
    "FlatModel",
    "LocalTraining",
    "LocalUpdate",
    "Task",
    "Work",
    "accuracy",
    "build_model",
    "built_in_task",
    "derive_seed",
    "evaluate",
    "label_counts",
    "load_dataset",
    "partition",
    "record_update",
    "save_adapter",
    "seeded",
    "train_locally",
]
