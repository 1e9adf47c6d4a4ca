"""The contract: metrics that every node adds to its update, and what its app is shown beside the model.

A client's loss is a fact about its data. So nobody reports one: each client adds its metrics to its update,
scaled to the clip, and the server learns Σ s·metric / Σ s of a whole buffer. They are not weighted by the
number of examples: that never changes, so from enough sums the server could solve for each client's.

The epoch binds the contract by its hash. With limits of its own for one client, a server would open that
client's metrics alone. With another config for one client, a learning rate of 0 for all others say, it would
read that client's update in the sum; the chain of models binds the model's numbers only. So the contract has
names and limits of metrics, the digests of the configs, and names, shapes and whole numbers of the arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from flwr.app import Context, MetricRecord, RecordDict

from basecagg.errors import DataError, LocalProtocolError, ParameterError, WrongEpoch, WrongModel
from basecagg.flower.layout import Layout
from basecagg.flower.node_folder import permission
from basecagg.flower.visits import OURS, Order

ROUND = "server-round"
"""What Flower writes into every config; it follows from the version."""
_ALLOWED = "basecagg-config"


def numbers(content: RecordDict) -> dict[str, Any]:
    """All metrics in the app's answer."""
    return {name: v for record in content.metric_records.values() for name, v in record.items()}


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every node puts behind its update, and what its app is shown beside the model."""

    train: Mapping[str, float]
    """The metrics of training that are averaged, and how large each can be."""
    evaluate: Mapping[str, float]
    """The same of evaluations."""
    examples: float = 0.0
    """An update counts n_i / examples times; 0 if all count alike."""
    weight: str = "num-examples"
    """What the app calls n_i."""
    tells_cuts: bool = True
    """Whether one more number says if anything had to be cut. Not with privacy: no budget covers it."""
    layout: str = ""
    """The digest of the model without its numbers (`layout_digest`)."""
    configs: Mapping[str, str] = {}
    """The digests of the configs of training and evaluation; without those that change with the version."""

    def __post_init__(self) -> None:
        """Refuse metrics that would give a client away, or that have no limit."""
        if self.weight in {*self.train, *self.evaluate}:
            raise ParameterError(
                f"'{self.weight}' cannot be averaged inside the sum: it never changes, so the server could"
                " solve for every client's. Leave it out; every member of a buffer counts alike",
                rule="no metric is constant",
            )
        for name, limit in (*self.train.items(), *self.evaluate.items()):
            if not 0 < limit < float("inf"):
                raise ParameterError(f"the limit of {name} must be positive", rule="limits > 0")

    def factor(self, values: Mapping[str, object]) -> float:
        """How often this client's update counts. Its n_i goes no further than into the product."""
        if not self.examples:
            return 1.0
        count = values.get(self.weight)
        if not isinstance(count, int | float) or not 0 < count < float("inf"):
            raise DataError(
                f"updates are weighted by '{self.weight}', and the client reported {list(values)}"
            )
        return count / self.examples

    @property
    def size(self) -> int:
        """Numbers behind the model's own: the metrics, and whether anything had to be cut."""
        return len(self.train) + len(self.evaluate) + self.tells_cuts

    def encode(
        self,
        update: npt.NDArray[np.floating],
        trained: Mapping[str, object],
        evaluated: Mapping[str, object] | None,
        clip: float,
    ) -> npt.NDArray[np.float64]:
        """The metrics of one client, each as a fraction of ±B. A last number may tell if something was cut."""
        parts = np.array([*_parts(self.train, trained), *_parts(self.evaluate, evaluated or {})])
        cut = bool(np.abs(update).max(initial=0.0) > clip or np.abs(parts).max(initial=0.0) > 1)
        told = np.append(parts, float(cut)) if self.tells_cuts else parts
        numbers: npt.NDArray[np.float64] = np.clip(told, -1.0, 1.0)
        return clip * numbers

    def decode(
        self, means: npt.NDArray[np.float64], clip: float
    ) -> tuple[MetricRecord | None, MetricRecord | None, float]:
        """Training and evaluation metrics of a buffer, and the fraction of its members that were cut."""
        parts, first, end = means / clip, len(self.train), len(self.train) + len(self.evaluate)
        cut = float(parts[end]) if self.tells_cuts else 0.0
        return _averages(self.train, parts[:first]), _averages(self.evaluate, parts[first:end]), cut

    # --- on the wire ------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The contract as it is sent; the epoch has the hash of these bytes."""
        return msgspec.json.encode(self)

    @staticmethod
    def digest_of(written: bytes) -> bytes:
        """The hash that the epoch binds."""
        # A contract was once called a charge: with another word stored epochs would bind another one.
        return hashlib.sha256(b"basecagg/flower/charge/v2" + written).digest()

    @classmethod
    def from_bytes(cls, written: bytes, bound: bytes) -> Contract:
        """The contract that the epoch binds; any other is refused."""
        if cls.digest_of(written) != bound:
            raise WrongEpoch(
                "the contract (metrics, configs, layout of the model) is not the one that the epoch binds"
            )
        return msgspec.json.decode(written, type=cls)


def _parts(limits: Mapping[str, float], values: Mapping[str, object]) -> Iterator[float]:
    """Each metric as a fraction of its limit. All must be there: a sum over some tells of those alone."""
    for name, limit in limits.items():
        value = values.get(name)
        if not isinstance(value, int | float) or not np.isfinite(value):
            raise DataError(
                f"the client reported no finite number '{name}': its metrics are {list(values)}"
            )
        yield value / limit


def _averages(limits: Mapping[str, float], means: npt.NDArray[np.float64]) -> MetricRecord | None:
    """The average of each metric, from the mean parts of their limits."""
    named = zip(limits.items(), means, strict=True)
    return MetricRecord({name: float(mean * limit) for (name, limit), mean in named}) or None


# --- beside the model -----------------------------------------------------------------------------


def config_digest(config: Mapping[str, object]) -> str:
    """The digest of a config without its round. Types count: 1, 1.0 and True are three values."""
    return _digest(b"config", sorted((key, each) for key, each in config.items() if key != ROUND))


def layout_digest(layout: Layout, arrays_key: str, config_key: str) -> str:
    """The digest of a model without its learned numbers, and of the names of the records."""
    fixed = [
        (key, each.dtype, each.shape, each.numpy().tobytes()) for key, each in layout.fixed.items()
    ]
    names = arrays_key, config_key, layout.order
    return _digest(b"layout", (names, layout.dtype, list(layout.shapes.items()), fixed))


def _digest(kind: bytes, content: object) -> str:
    written = msgspec.msgpack.encode(content)
    return hashlib.sha256(b"basecagg/flower/" + kind + b"/v1" + written).hexdigest()


def require_bound(
    content: RecordDict, order: Order, layout: Layout, contract: Contract, context: Context
) -> None:
    """Refuse to show the app anything that the epoch does not bind."""
    odd = sorted(set(content) - {*OURS, order.arrays_key, order.config_key})
    if odd:
        raise WrongModel(f"records that nobody agreed on came with the model: {odd}")
    if layout_digest(layout, order.arrays_key, order.config_key) != contract.layout:
        raise WrongModel(
            "names, shapes or whole numbers of the model are not those that the epoch binds"
        )
    config: Mapping[str, object] = content.config_records.get(order.config_key) or {}
    if config.get(ROUND) != order.version + 1:
        raise WrongModel(f"the config is of another round than version {order.version}")
    if order.task not in contract.configs:
        _require_permission(context)
    elif config_digest(config) != contract.configs[order.task]:
        raise WrongModel("the config is not the one that the epoch binds")


def _require_permission(context: Context) -> None:
    """Nothing binds a config that changes from version to version: the node or run config must allow it."""
    told = permission(context, _ALLOWED)
    if told != "changing":
        raise LocalProtocolError(
            "the strategy overrides configure_train or configure_evaluate, so its server could give each node"
            f" another config. If that is wanted, write {_ALLOWED}='changing' into the run config, or into the"
            f" node config, which outweighs it (it is {told!r})"
        )
