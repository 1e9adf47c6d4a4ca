"""The recipe for a model of a hub: run with a model in a folder, and with the hub's name up to the download."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("peft")
pytest.importorskip("transformers")

import tokenizers
import transformers

from basecagg import SimulationConfig, simulate

EXAMPLE = Path(__file__).parents[2] / "examples" / "language-model"
TEXTS = [f"the {what} is {how}" for what in ("cat", "dog", "cow") for how in ("old", "ill", "fine")]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example, with a tiny model and a tokeniser where the hub's would be."""
    words = sorted({word for text in TEXTS for word in text.split()})
    names = {name: number for number, name in enumerate(["<end>", "<unknown>", *words])}
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="<unknown>"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokeniser = transformers.PreTrainedTokenizerFast(tokenizer_object=whole, eos_token="<end>")
    tokeniser.save_pretrained(tmp_path / "base")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": len(names)}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    model.save_pretrained(tmp_path / "base")
    monkeypatch.setenv("LM_BASE", str(tmp_path / "base"))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield import_module("hub")
    for name in ("hub", "notes"):
        sys.modules.pop(name, None)


def test_the_recipe_with_a_model_in_a_folder(hub: Any, tmp_path: Path) -> None:
    small = {"users": 3, "buffer_size": 3, "versions": 2, "local_steps": 4, "batch_size": 2}
    config = SimulationConfig(method="fedbuff", local_optimiser="adamw", local_rate=0.01, **small)
    result = simulate(config, task=hub.task(TEXTS))
    assert result.versions[-1].loss < result.versions[0].loss
    file = tmp_path / "notes.txt"
    file.write_text("\n".join(TEXTS))
    info = SimpleNamespace(name="ward-0", data=str(file), version=0, round=0)
    trained = hub.train(result.model, info)
    assert trained.shape == result.model.shape
    assert 0 < np.abs(trained - result.model).max() < 1


def test_the_recipe_with_the_hubs_name_goes_as_far_as_the_download(tmp_path: Path) -> None:
    surroundings = {name: value for name, value in os.environ.items() if name != "LM_BASE"}
    surroundings |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(EXAMPLE)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import hub; print(hub.BASE); hub.adapted()"],
        capture_output=True,
        text=True,
        check=False,
        env=surroundings,
    )
    assert done.returncode == 1
    assert "in from_pretrained" in done.stderr
    assert done.stdout.strip() == "HuggingFaceTB/SmolLM2-135M"
    assert "couldn't connect to 'https://huggingface.co'" in done.stderr
