"""Fine-tune the small language model with twelve wards under BASecAgg, and keep an adapter for peft.

python simulate.py            # one seed, a minute
python simulate.py 1 2 3      # as in the tutorial, with losses.json for its curve
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import notes

from basecagg import SimulationConfig, simulate
from basecagg.learning import FlatModel, save_adapter

CONFIG = SimulationConfig(
    method="basecagg",
    users=notes.WARDS,
    partition="owners",  # every ward has its own notes
    concurrency=8,
    buffer_size=4,
    versions=16,
    local_optimiser="adamw",
    local_rate=0.002,
    local_steps=10,
    batch_size=16,
    evaluate_every=2,
)


def main(seeds: list[int]) -> None:
    """Train with every seed; keep the last adapter."""
    losses = {}
    for seed in seeds:
        values = {**vars(CONFIG), "seed": seed}
        result = simulate(SimulationConfig(**values), task=notes.task(), progress=True)
        curve = [(v.version, v.loss) for v in result.versions if v.loss is not None]
        losses[seed] = curve
        print(f"seed {seed}: loss {curve[0][1]:.2f} → {curve[-1][1]:.2f}")
    save_adapter(FlatModel(notes.adapted()), result.model, "adapter")
    Path("losses.json").write_text(json.dumps(losses, indent=1) + "\n")


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [1])
