"""An adapter by itself, as peft loads it: its tensors by peft's names, and its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from basecagg.errors import DataError, MissingPartError
from basecagg.learning.flat_parameters import FlatModel

TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""The files of an adapter."""
Metadata = Callable[[Sequence[str]], Mapping[str, str]]
"""What the file of tensors says besides, given which tensors in which order are the vector."""


def save_adapter(model: FlatModel, vector: NDArray[np.float32], folder: Path | str) -> None:
    """Write the adapter of the model x = `vector` for `PeftModel.from_pretrained(base, folder)`."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name, content in adapter_files(model, vector).items():
        (place / name).write_bytes(content)


def adapter_files(
    model: FlatModel, vector: NDArray[np.float32], metadata: Metadata = lambda order: {}
) -> dict[str, bytes]:
    """The files of an adapter by their names; `DataError` if something trains that is no part of it."""
    peft = _peft()
    found = [part for part in model.module.modules() if isinstance(part, peft.PeftModel)]
    if not found:
        raise DataError("the model has no adapter of peft: it is exported whole, without --adapter")
    model.load(vector)
    tensors = peft.get_peft_model_state_dict(found[0], save_embedding_layers=False)
    places = {tensor.data_ptr(): name for name, tensor in tensors.items()}
    state = model.module.state_dict(keep_vars=True)
    outside = [name for name in model.names if state[name].data_ptr() not in places]
    if outside:
        raise DataError(
            f"{outside[0]} trains, and is no part of the adapter: set requires_grad_(False) on it, or name its"
            " module in modules_to_save"
        )
    order = [places[state[name].data_ptr()] for name in model.names]
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save = import_module("safetensors.torch").save  # peft needs it, too
    with TemporaryDirectory() as folder:
        found[0].save_pretrained(folder, save_embedding_layers=False)
        config = (Path(folder) / CONFIG).read_bytes()
    return {TENSORS: save(whole, {"format": "pt", **metadata(order)}), CONFIG: config}


def _peft() -> Any:
    try:
        return import_module("peft")
    except ModuleNotFoundError as error:
        raise MissingPartError("an adapter is written by peft: pip install peft") from error
