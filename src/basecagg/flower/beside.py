"""What an app is shown beside the model's numbers: the config, and names, shapes and whole numbers of arrays.

The chain of models binds the numbers alone. With a learning rate of 0 for all others, a server would read one
node's update in the sum. So the epoch binds the rest too, by its contract.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from flwr.app import Context, RecordDict

from basecagg.errors import LocalProtocolError, WrongModel
from basecagg.flower.flat import Layout
from basecagg.flower.metrics import Contract
from basecagg.flower.node_folder import permission
from basecagg.flower.visits import OURS, Order

ROUND = "server-round"
"""What Flower writes into every config; it follows from the version."""
_ALLOWED = "basecagg-config"


def config_digest(config: Mapping[str, object]) -> str:
    """Of a config without its round. Types count: 1, 1.0 and True are three values."""
    return _digest(b"config", sorted((key, each) for key, each in config.items() if key != ROUND))


def layout_digest(layout: Layout, arrays_key: str, config_key: str) -> str:
    """Of a model without its learned numbers, and of the names of the records."""
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
    """Refuse whatever the app would be shown that the epoch does not bind."""
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
    """A config that changes from version to version is bound by nothing: somebody must have allowed that."""
    told = permission(context, _ALLOWED)
    if told != "changing":
        raise LocalProtocolError(
            "the strategy overrides configure_train or configure_evaluate, so its server could give each node"
            f" another config. If that is wanted, write {_ALLOWED}='changing' into the run config, or into the"
            f" node config, which outweighs it (it is {told!r})"
        )
