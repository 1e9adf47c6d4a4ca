"""The same with a model of a hub: this file's `adapted`, `task` and `train` in the place of those of notes.py.

The first use downloads the model. LM_BASE names another, or a folder that has one.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from notes import loss, words_foreseen
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from basecagg.learning import (
    Dataset,
    FlatModel,
    LocalTraining,
    Task,
    derive_seed,
    seeded,
    train_locally,
)

BASE = os.environ.get("LM_BASE", "HuggingFaceTB/SmolLM2-135M")
LENGTH = 64
TRAINING = LocalTraining(learning_rate=0.0005, optimiser="adamw", steps=10, batch_size=4)


def adapted():
    """The base in bfloat16, which is frozen, and an adapter in float32, which trains."""
    base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)
    adapter = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    with seeded(1):  # the adapter begins alike everywhere
        return get_peft_model(base, adapter)


def task(texts: list[str]) -> Task:
    """Your own texts, the last tenth of them to test with."""
    tokeniser = AutoTokenizer.from_pretrained(BASE)
    tokeniser.pad_token = tokeniser.pad_token or tokeniser.eos_token
    tokens = tokeniser(
        texts, truncation=True, padding="max_length", max_length=LENGTH, return_tensors="pt"
    ).input_ids
    kept = max(1, len(texts) // 10)
    return Task(
        name=f"texts for {BASE}",
        model=adapted,
        dataset=Dataset(
            name="texts",
            train_x=tokens[:-kept],
            train_y=tokens[:-kept],
            test_x=tokens[-kept:],
            test_y=tokens[-kept:],
        ),
        loss=loss,
        score=words_foreseen,
    )


@cache
def _here(file: str) -> tuple[Task, FlatModel]:
    return task(Path(file).read_text("utf-8").splitlines()), FlatModel(adapted())


def train(model, info):
    """Train the adapter on the lines of the file that `--data` names."""
    own, flat = _here(info.data)
    everything = np.arange(len(own.dataset.train_y))
    seed = derive_seed(1, info.version, info.round)
    update = train_locally(own, flat, model, everything, TRAINING, seed=seed, user=info.name)
    return model - update.delta
