"""An app that sends an adapter alone: peft's own arrays, through the vector and back."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("peft")
pytest.importorskip("transformers")

import numpy as np
import peft
import torch
import transformers
from flwr.app import ArrayRecord

from basecagg.errors import DataError
from basecagg.flower.layout import Layout


def adapted(seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 20}
        base = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
        )
        torch.manual_seed(seed)
        lora = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        made = peft.get_peft_model(base.to(torch.float16), lora)
        for weight in made.parameters():
            if weight.requires_grad:
                weight.data = torch.randn(weight.shape)
        return made.eval()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_adapters_arrays_lie_in_the_vector_and_come_back(seed: int) -> None:
    """The base is of float16 and stays at home; only what trains travels."""
    model = adapted(seed)
    sent = ArrayRecord(peft.get_peft_model_state_dict(model))
    layout = Layout.of(sent)
    assert layout.size == sum(w.numel() for w in model.parameters() if w.requires_grad)
    vector = layout.flatten(sent)
    other = adapted(seed + 10)
    peft.set_peft_model_state_dict(other, layout.unflatten(vector).to_torch_state_dict())
    for name, array in peft.get_peft_model_state_dict(other).items():
        assert np.array_equal(array.numpy(), sent[name].numpy())


def test_a_whole_model_of_two_precisions_is_refused_with_what_to_send() -> None:
    with pytest.raises(DataError, match=r"float16, float32.*peft.get_peft_model_state_dict"):
        Layout.of(ArrayRecord(adapted(1).state_dict()))
