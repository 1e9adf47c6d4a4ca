"""Draw the curve of the tutorial on language models from the committed losses.

cd examples/language-model && python simulate.py 1 2 3
mv losses.json ../../benchmarks/results/language-model/ && cd ../.. && python scripts/language_model.py
"""

from __future__ import annotations

import json
from pathlib import Path

from basecagg.reports.plots import save
from reproduction.plot import lines

ROOT = Path(__file__).parent.parent


def main() -> None:
    """One line for each seed."""
    text = (ROOT / "benchmarks/results/language-model/losses.json").read_text("utf-8")
    curves = {
        f"seed {seed}: {curve[0][1]:.2f} → {curve[-1][1]:.2f}": curve
        for seed, curve in json.loads(text).items()
    }
    figure = lines(curves, "version of the adapter", "loss on notes that no ward has")
    figure.axes[0].set_ylim(bottom=0)
    save(figure, ROOT / "docs" / "images", "language-model", ("svg",))


if __name__ == "__main__":
    main()
