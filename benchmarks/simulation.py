"""What the simulator and the protocol add to training: `python -m benchmarks.simulation`, part of `make bench`.

MNIST and LeNet-5, 100 users, K = 10, one local epoch. Times are wall seconds per update with one torch thread,
the best of interleaved repeats: a bare torch loop, fedbuff, basecagg in arithmetic only, in full, with noise,
and Flower's simulation engine with FedAvg on the same model, data and number of updates.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import nn

from benchmarks.bars import Result, at_least, at_most
from benchmarks.timing import times
from reproduction import machine, report

RESULTS = Path("benchmarks/results/simulation.json")
FLOWER = Path(".venv/flower-peer")
SHAPE, CLASSES = (1, 28, 28), 10
BATCH, RATE = 50, 0.05
_START = "from benchmarks.flower_simulation import main; main()"
HOW = "wall, one torch thread, best of interleaved repeats"


class Sizes(NamedTuple):
    """How large the federation is."""

    users: int = 100
    buffer: int = 10
    versions: int = 40
    """Of 400 updates every user makes about four: as many masks as share a key agreement."""
    examples: int = 60_000


def main() -> int:
    """Measure, print, write; fail if a bar is missed."""
    options, console = _options(), Console()
    if options.install_flower:
        install_flower(options.flower)
    sizes = Sizes(versions=2, examples=6_000) if options.quick else Sizes()
    task, source = load_task(sizes, options.data_dir)
    console.print(f"{source}, {sizes.versions} versions of {sizes.buffer} updates …")
    seconds = ours(task, sizes, repeats=1 if options.quick else 3)
    seconds |= flower(task, sizes, options.flower, console)
    lines = bars(seconds)
    told = [line._asdict() for line in lines]
    report.show_table(console, f"Times per update: {HOW}", times(seconds))
    report.show_table(console, "Bars", told)
    if options.quick:
        console.print("A quick run: too small for the bars, and nothing is written.")
        return 0
    about = machine.describe() | {"how": HOW, "data": source, **sizes._asdict()}
    report.write_json(RESULTS, {"about": about, "bars": told, "seconds": seconds})
    console.print(f"Written: {RESULTS}")
    return 0 if len(lines) == 5 and all(line.ok for line in lines) else 1


def bars(seconds: dict[str, float]) -> list[Result]:
    """Each bar as a line: ratio · bar · reached · ok."""
    plain, bare = seconds["fedbuff"], seconds["bare torch loop"]
    lines = [
        at_most("basecagg, full protocol / fedbuff", 1.3, seconds["basecagg, full"] / plain),
        at_most("basecagg-dp, full protocol / fedbuff", 1.3, seconds["basecagg-dp, full"] / plain),
        at_most("basecagg, arithmetic / fedbuff", 1.05, seconds["basecagg, arithmetic"] / plain),
        at_most("fedbuff / bare torch loop", 1.1, plain / bare),
    ]
    if "Flower's overhead" in seconds:
        ratio = seconds["Flower's overhead"] / seconds["fedbuff's overhead"]
        lines.append(at_least("overhead per update: Flower / ours", 5, ratio))
    return lines


# --- ours -------------------------------------------------------------------------------------------


def load_task(sizes: Sizes, data_dir: Path) -> tuple[object, str]:
    """LeNet-5 on MNIST, or on noise of its shape if the files are not there. Few examples to test with."""
    from basecagg.errors import DataError
    from basecagg.learning import Dataset, Task, load_dataset
    from basecagg.learning.models import build_model

    generator = torch.Generator().manual_seed(1)
    try:
        data = load_dataset("mnist", data_dir=data_dir)
        x, y, source = data.train_x[: sizes.examples], data.train_y[: sizes.examples], "MNIST"
    except DataError:
        x = torch.randn(sizes.examples, *SHAPE, generator=generator)
        y = torch.randint(CLASSES, (sizes.examples,), generator=generator)
        source = "noise of MNIST's shape"
    dataset = Dataset(
        name="mnist", train_x=x, train_y=y, test_x=x[:100], test_y=y[:100], num_classes=CLASSES
    )
    return Task(
        name="bench", model=lambda: build_model("lenet5", SHAPE, CLASSES), dataset=dataset
    ), source


def ours(task: object, sizes: Sizes, repeats: int) -> dict[str, float]:
    """Seconds per update of the bare loop and of our methods."""
    torch.set_num_threads(1)
    rivals: dict[str, Callable[[], dict[str, float]]] = {
        "bare torch loop": lambda: {"bare torch loop": bare_loop(task, sizes)},
        "fedbuff": lambda: run_method(task, sizes, "fedbuff", "fedbuff"),
        "basecagg, arithmetic": lambda: run_method(
            task, sizes, "basecagg, arithmetic", "basecagg", cryptography="arithmetic"
        ),
        "basecagg, full": lambda: run_method(task, sizes, "basecagg, full", "basecagg"),
        "basecagg-dp, full": lambda: run_method(
            task,
            sizes,
            "basecagg-dp, full",
            "basecagg-dp",
            noise=1.0,
            clip_norm=0.01,  # so little noise that 40 versions train
            max_uses=sizes.versions,
        ),
    }
    warm = sizes._replace(versions=1)
    for method in ("basecagg", "basecagg-dp"):
        run_method(task, warm, "", method)
    best: dict[str, float] = {}
    for _ in range(repeats):
        for rival in rivals.values():
            for name, seconds in rival().items():
                best[name] = min(best.get(name, seconds), seconds)
    return best


def run_method(
    task: object, sizes: Sizes, name: str, method: str, **changes: object
) -> dict[str, float]:
    """Seconds per update of a whole run, and the part of them that is not training."""
    from basecagg import SimulationConfig, simulate

    config = SimulationConfig(
        method=method,
        users=sizes.users,
        buffer_size=sizes.buffer,
        versions=sizes.versions,
        local_epochs=1,
        batch_size=BATCH,
        local_rate=RATE,
        evaluate_every=sizes.versions,
        **changes,  # type: ignore[arg-type]
    )
    started = time.perf_counter()
    result = simulate(config, task=task)  # type: ignore[arg-type]
    wall, updates = time.perf_counter() - started, result.totals["updates"]
    overhead = wall - result.totals["training seconds"]
    return {name: wall / updates, f"{name}'s overhead": overhead / updates}


def bare_loop(task: object, sizes: Sizes) -> float:
    """Seconds per update of nothing but the SGD steps, with torch's own optimiser."""
    from basecagg.learning.models import build_model

    model = build_model("lenet5", SHAPE, CLASSES)
    data = task.dataset  # type: ignore[attr-defined]
    parts = np.array_split(np.random.default_rng(1).permutation(sizes.examples), sizes.users)
    updates = sizes.versions * sizes.buffer
    started = time.perf_counter()
    for update in range(updates):
        indices = torch.from_numpy(parts[update % sizes.users])
        epoch_of_sgd(model, data.train_x, data.train_y, indices)
    return (time.perf_counter() - started) / updates


def epoch_of_sgd(model: nn.Module, x: torch.Tensor, y: torch.Tensor, indices: torch.Tensor) -> None:
    """One pass over the examples."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    model.train()
    shuffled = indices[torch.randperm(len(indices))]
    for batch in torch.split(shuffled, BATCH):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimiser.step()


# --- Flower -----------------------------------------------------------------------------------------


def flower(task: object, sizes: Sizes, peer: Path, console: Console) -> dict[str, float]:
    """Seconds per update of Flower beyond its clients' training; nothing if it is not installed."""
    python = peer / "bin" / "python"
    if not python.exists():
        console.print(f"No Flower in {peer}: give --install-flower, or do without its bar.")
        return {}
    data = task.dataset  # type: ignore[attr-defined]
    parts = np.random.default_rng(1).permutation(sizes.examples).reshape(sizes.users, -1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        np.savez(file, x=data.train_x.numpy(), y=data.train_y.numpy(), parts=parts)
        done = subprocess.run(
            [python, "-c", _START, json.dumps(sizes._asdict())],
            env=os.environ | _flower_environment(file),
            capture_output=True,
            text=True,
            check=False,
        )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        console.print(f"Flower did not run: {done.stderr[-500:]}")
        return {}
    told = json.loads(found[0].removeprefix("RESULT "))
    overhead = (told["wall"] - told["training"]) / told["updates"]
    return {"Flower, FedAvg": told["wall"] / told["updates"], "Flower's overhead": overhead}


def _flower_environment(data: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": f"{Path.cwd()}:{Path('src').resolve()}",
        "BENCHMARK_DATA": str(data),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def install_flower(peer: Path) -> None:
    """A virtual environment with Flower and Ray; torch and the rest are lent by ours."""
    venv.create(peer, with_pip=True)
    pip = [str(peer / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "flwr[simulation]>=1.41,<1.43"], check=True)
    lend_packages(peer)


def lend_packages(peer: Path) -> None:
    """Let the peer find our packages after its own."""
    (own,) = peer.glob("lib/python*/site-packages")
    ours_ = next(path for path in sys.path if path.endswith("site-packages"))
    (own / "lent.pth").write_text(f"{ours_}\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="where MNIST lies")
    parser.add_argument("--flower", type=Path, default=FLOWER, help="where Flower is installed")
    parser.add_argument("--install-flower", action="store_true", help="install Flower there first")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
