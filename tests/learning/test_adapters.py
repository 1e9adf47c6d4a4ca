"""Models of which a part trains: adapters of peft, through our vector and back to peft."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("peft")
pytest.importorskip("transformers")

import peft
import transformers

from basecagg import SimulationConfig, simulate
from basecagg.errors import DataError, MissingPartError
from basecagg.learning import Dataset, FlatModel, Task, save_adapter

WORDS, LENGTH = 40, 12


def base(dtype: torch.dtype = torch.float32) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
        config = transformers.GPT2Config(vocab_size=WORDS, bos_token_id=0, eos_token_id=0, **sizes)
        return transformers.GPT2LMHeadModel(config).to(dtype)


def adapted(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    lora = peft.LoraConfig(
        r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, task_type="CAUSAL_LM", **more
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return peft.get_peft_model(base(dtype), lora)


def next_token_loss(outputs: Any, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), tokens[:, 1:])


def next_token(outputs: Any, tokens: torch.Tensor) -> torch.Tensor:
    return (outputs.logits[:, :-1].argmax(dim=2) == tokens[:, 1:]).float()


def counting(dtype: torch.dtype = torch.float32) -> Task:
    """Sequences that count upwards: what comes next is easy to learn."""
    tokens = (torch.arange(120)[:, None] * 7 + torch.arange(LENGTH)) % WORDS
    return Task(
        name="counting",
        model=lambda: adapted(dtype),
        dataset=Dataset(
            name="counting",
            train_x=tokens[:90],
            train_y=tokens[:90],
            test_x=tokens[90:],
            test_y=tokens[90:],
        ),
        loss=next_token_loss,
        score=next_token,
    )


SMALL = {"users": 6, "buffer_size": 3, "local_steps": 4, "batch_size": 8, "evaluate_every": 6}
ADAM = {"local_optimiser": "adamw", "local_rate": 0.01, "global_rate": 1.0, "versions": 12}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", ["fedbuff", "basecagg"])
def test_a_model_of_which_only_its_adapter_trains(method: str, dtype: torch.dtype) -> None:
    """Targets are [n, T], outputs are an object, and what is frozen may have another precision."""
    meeting = (
        {"max_colluding_contributors": 0, "min_per_version": 2} if method == "basecagg" else {}
    )
    result = simulate(
        SimulationConfig(method=method, **SMALL, **ADAM, **meeting), task=counting(dtype)
    )
    losses = [version.loss for version in result.versions if version.loss is not None]
    assert losses[-1] < losses[0] - 0.2  # the frozen base is random: there is not much to adapt
    trained = sum(w.numel() for w in adapted().parameters() if w.requires_grad)
    assert result.model.size == trained < sum(w.numel() for w in base().parameters()) / 4


def test_outputs_that_are_no_tensor_ask_for_a_loss_and_a_score() -> None:
    whole = counting()
    bare = Task(name="bare", model=whole.model, dataset=whole.dataset)
    with pytest.raises(
        DataError, match=r"gives a CausalLM\w+, which is no tensor: .*loss= and a score="
    ):
        simulate(SimulationConfig(method="fedbuff", **SMALL), task=bare)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("wrapped", [False, True])
def test_an_adapter_through_peft_changes_no_logit(seed: int, wrapped: bool, tmp_path: Path) -> None:
    module = nn.ModuleDict({"inner": adapted()}) if wrapped else adapted()
    model = FlatModel(module)
    vector = np.random.default_rng(seed).normal(0, 0.1, model.size).astype(np.float32)
    save_adapter(model, vector, tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path / "adapter").eval()
    ours = (module["inner"] if wrapped else module).eval()
    tokens = torch.randint(WORDS, (4, LENGTH), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        here, there = ours(input_ids=tokens).logits, loaded(input_ids=tokens).logits
        assert torch.equal(here, there)
        assert not torch.equal(here, base().eval()(input_ids=tokens).logits)


def test_what_trains_outside_of_the_adapter_is_not_lost_without_a_word(tmp_path: Path) -> None:
    module = adapted()
    module.base_model.model.transformer.ln_f.weight.requires_grad_(True)
    model = FlatModel(module)
    with pytest.raises(DataError, match=r"ln_f.weight trains, and is no part of the adapter"):
        save_adapter(model, model.vector(), tmp_path / "adapter")
    assert not list((tmp_path / "adapter").glob("*"))


def test_modules_that_are_saved_with_the_adapter(tmp_path: Path) -> None:
    module = adapted(modules_to_save=["ln_f"])
    model = FlatModel(module)
    vector = model.vector() + np.float32(0.25)
    save_adapter(model, vector, tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path / "adapter").eval()
    tokens = torch.arange(LENGTH)[None]
    with torch.inference_mode():
        assert torch.equal(module.eval()(input_ids=tokens).logits, loaded(input_ids=tokens).logits)


def test_a_model_without_adapter_and_a_machine_without_peft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = FlatModel(nn.Linear(2, 2))
    with pytest.raises(DataError, match="has no adapter of peft"):
        save_adapter(plain, plain.vector(), tmp_path / "adapter")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingPartError, match="pip install peft"):
        save_adapter(plain, plain.vector(), tmp_path / "adapter")


def test_an_exported_adapter_carries_its_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from basecagg.channels.safetensors import read_exported
    from basecagg.service.operator.export import export_adapter

    monkeypatch.setattr("basecagg.service.operator.export._call", lambda place: adapted())
    vector = np.arange(FlatModel(adapted()).size, dtype=np.float32)
    export_adapter(vector, tmp_path / "adapter", "my:model", pedigree=b"a pedigree")
    exported = read_exported((tmp_path / "adapter" / "adapter_model.safetensors").read_bytes())
    assert np.array_equal(exported.vector, vector)
    assert exported.pedigree == b"a pedigree"
    assert peft.PeftModel.from_pretrained(base(), tmp_path / "adapter")
