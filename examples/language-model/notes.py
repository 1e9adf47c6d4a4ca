"""A small language model, short notes of wards to adapt it to, and what a ward runs: all made on the spot.

Everybody has the base model; only its adapter is trained. `basecagg join INVITATION --train notes:train
--data 2` trains on the notes of ward 2.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from basecagg.learning import (
    Dataset,
    FlatModel,
    LocalTraining,
    Task,
    derive_seed,
    seeded,
    train_locally,
)

LENGTH, WARDS, NOTES = 20, 12, 40
LINES = {
    "public": [
        ["the man", "the woman", "a child", "my neighbour", "the teacher", "a friend"],
        ["sees", "likes", "paints", "buys", "carries", "finds"],
        ["a red house", "the old car", "some bread", "a blue bird", "the small dog", "a book"],
        ["in town", "at home", "on the hill", "near the river", "after lunch", "before dawn"],
    ],
    "notes": [
        ["a child", "a man of forty", "a woman of sixty", "a woman of eighty"],
        ["reports chest pain", "denies fever", "has a dry cough", "shows a rash", "has headache"],
        ["for two days", "since monday", "for a week", "after lunch", "before dawn"],
        ["and gets aspirin", "and goes home", "and needs an x-ray", "and comes again in a week"],
    ],
}
WORDS = [
    "<end>",
    *sorted({w for lines in LINES.values() for part in lines for p in part for w in p.split()}),
]
TRAINING = LocalTraining(learning_rate=0.002, optimiser="adamw", steps=10, batch_size=16)
torch.set_num_threads(1)  # several wards may share this machine


def texts(kind: str, count: int, seed: int) -> torch.Tensor:
    """Sentences as numbers of words, filled up with the end."""
    generator = np.random.default_rng(seed)
    place = {word: index for index, word in enumerate(WORDS)}
    tokens = np.zeros((count, LENGTH), np.int64)
    for row in tokens:
        words = " ".join(generator.choice(part) for part in LINES[kind]).split()
        row[: len(words)] = [place[word] for word in words]
    return torch.from_numpy(tokens)


def loss(outputs, tokens):
    """How badly each next word was foreseen."""
    return nn.functional.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), tokens[:, 1:])


def words_foreseen(outputs, tokens):
    """1 where the likeliest next word is the right one."""
    return (outputs.logits[:, :-1].argmax(dim=2) == tokens[:, 1:]).float()


@cache
def _base_weights() -> dict[str, torch.Tensor]:
    """The base model, taught everyday sentences in the open. With a model of a hub this is a download."""
    with seeded(0):
        model = _empty()
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.002)
        sentences = texts("public", 640, seed=0)
        for _ in range(4):
            for batch in sentences.split(32):
                optimiser.zero_grad()
                loss(model(input_ids=batch), batch).backward()
                optimiser.step()
    return model.state_dict()


def _empty() -> GPT2LMHeadModel:
    sizes = {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": LENGTH}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=len(WORDS), bos_token_id=0, eos_token_id=0, **sizes)
    )


def base() -> GPT2LMHeadModel:
    """The model that everybody has."""
    model = _empty()
    model.load_state_dict(_base_weights())
    return model


def adapted():
    """The base model with an adapter of 131,072 numbers: what trains, and all that travels."""
    adapter = LoraConfig(
        r=32,
        lora_alpha=32,
        target_modules=["c_attn", "c_proj", "c_fc"],
        fan_in_fan_out=True,
        task_type="CAUSAL_LM",
    )
    model = base()
    with seeded(1):  # the adapter begins alike everywhere
        return get_peft_model(model, adapter)


def task() -> Task:
    """All wards' notes; in a federation every ward has its own only."""
    notes, others = texts("notes", WARDS * NOTES, seed=1), texts("notes", 100, seed=2)
    return Task(
        name="notes of wards",
        model=adapted,
        dataset=Dataset(
            name="notes",
            train_x=notes,
            train_y=notes,
            test_x=others,
            test_y=others,
            owners=[f"ward-{index % WARDS:02}" for index in range(len(notes))],
        ),
        loss=loss,
        score=words_foreseen,
    )


# --- what a ward runs -----------------------------------------------------------------------------


@cache
def _here() -> tuple[Task, FlatModel]:
    return task(), FlatModel(adapted())


def train(model, info):
    """Train the adapter on the notes of this ward."""
    notes, flat = _here()
    ward = int(info.data)
    mine = np.arange(ward, WARDS * NOTES, WARDS)
    seed = derive_seed(1, ward, info.version, info.round)
    return (
        model - train_locally(notes, flat, model, mine, TRAINING, seed=seed, user=info.name).delta
    )
