"""How the arrays of a Flower app lie in one vector, the x of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from basecagg.errors import DataError
from basecagg.maths.running_statistics import (
    below_zero,
    damped,
    is_statistic,
    is_variance,
    readable,
)
from basecagg.protocol.global_model import Model

_LEARNED = ("float32", "float64")


@dataclass(frozen=True)
class Layout:
    """Where each array lies in the vector.

    Whole numbers, such as BatchNorm's count of batches, are not learned: they stay as they were at first.
    """

    shapes: dict[str, tuple[int, ...]]
    """The learned arrays, in the order of the record."""
    dtype: str
    fixed: dict[str, Array]
    order: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> Layout:
        """The layout of a model; all its learned arrays have one precision, or hashes would not agree."""
        learned = {key: array for key, array in record.items() if "float" in array.dtype}
        dtypes = {array.dtype for array in learned.values()}
        if len(dtypes) != 1 or not dtypes <= set(_LEARNED):
            raise DataError(
                f"the model's arrays are of {', '.join(sorted(dtypes)) or 'no floating type'}:"
                f" convert them all to {' or all to '.join(_LEARNED)}, and leave out what does not train (of an"
                " adapter send peft.get_peft_model_state_dict(model) alone)"
            )
        shapes = {key: tuple(array.shape) for key, array in learned.items()}
        fixed = {key: array for key, array in record.items() if key not in learned}
        return cls(shapes, dtypes.pop(), fixed, tuple(record))

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def flatten(self, record: ArrayRecord) -> Model:
        """The vector of a record; one of another model is refused."""
        pieces = [self._piece(record, key, shape) for key, shape in self.shapes.items()]
        return np.concatenate(pieces)

    def _piece(
        self, record: ArrayRecord, key: str, shape: tuple[int, ...]
    ) -> npt.NDArray[np.floating]:
        array = record[key].numpy() if key in record else None
        if array is None or array.shape != shape:
            found = "missing" if array is None else f"of shape {array.shape}"
            raise DataError(f"array '{key}' is {found}, the model's has shape {shape}")
        return array.ravel().astype(self.dtype, copy=False)

    def unflatten(self, vector: Model) -> ArrayRecord:
        """The record that the app knows, with every number as the vector has it: its hash is the vector's."""
        pieces = {
            key: Array(np.ascontiguousarray(vector[place].reshape(self.shapes[key])))
            for key, place in self._places().items()
        }
        return ArrayRecord({key: pieces.get(key) or self.fixed[key] for key in self.order})

    def difference(
        self, start: Model, trained: Model, max_staleness: int, factor: float = 1.0
    ) -> Model:
        """Δ = x_start − x_end, times `factor`; of BatchNorm's statistics the part that stale sums can bear."""
        delta = start - trained
        for key, place in self._places().items():
            if is_statistic(key):
                delta[place] = damped(delta[place], max_staleness)
            else:
                delta[place] *= factor
        return delta

    @property
    def averaged(self) -> tuple[tuple[int, int], ...]:
        """Where BatchNorm's statistics lie: the server's optimiser leaves them alone."""
        places = [place for key, place in self._places().items() if is_statistic(key)]
        return tuple((at.start, at.stop) for at in places if at.start < at.stop)

    def below_zero(self, vector: Model) -> int:
        """How many of BatchNorm's variances are below zero."""
        places = [place for key, place in self._places().items() if is_variance(key)]
        return sum(below_zero(vector[place]) for place in places)

    def _places(self) -> dict[str, slice]:
        """Where each array begins and ends."""
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        ends = np.cumsum(sizes, dtype=int).tolist()
        spans = zip(self.shapes, sizes, ends, strict=True)
        return {key: slice(end - size, end) for key, size, end in spans}


def as_app_reads(record: ArrayRecord) -> ArrayRecord:
    """The record for the app's own functions: a running variance below zero is zero."""
    read = {key: Array(readable(a.numpy())) for key, a in record.items() if is_variance(key)}
    return ArrayRecord({key: read.get(key, array) for key, array in record.items()})


def only_arrays(records: object) -> ArrayRecord:
    """The one ArrayRecord among the records that a training function returned."""
    found = list(getattr(records, "array_records", {}).values())
    if len(found) != 1:
        raise DataError(f"training returned {len(found)} ArrayRecords, not exactly one")
    record: ArrayRecord = found[0]
    return record
