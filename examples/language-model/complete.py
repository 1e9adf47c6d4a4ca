"""Complete the beginning of a note with the base and the adapter: python complete.py adapter "a child"."""

from __future__ import annotations

import sys

import notes
import torch
from peft import PeftModel


def complete(model, beginning: str) -> str:
    """The likeliest next words, up to the end of the note."""
    tokens = [notes.WORDS.index(word) for word in beginning.split()]
    with torch.inference_mode():
        while len(tokens) < notes.LENGTH and tokens[-1] != 0:
            logits = model.eval()(input_ids=torch.tensor([tokens])).logits
            tokens.append(int(logits[0, -1].argmax()))
    return " ".join(notes.WORDS[token] for token in tokens if token)


if __name__ == "__main__":
    folder, beginning = sys.argv[1:]
    print("base:   ", complete(notes.base(), beginning))
    print("adapted:", complete(PeftModel.from_pretrained(notes.base(), folder), beginning))
