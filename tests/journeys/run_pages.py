"""Pages about runs, plans and audits on one machine."""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from documented import ROOT, blocks
from walks import Story, Walk, elsewhere, typed

SHORT = (r"$", " --versions 3")
"""Added to a run: three versions instead of sixty."""


# --- what readers have --------------------------------------------------------------------------------------


def have(*names: str) -> Callable[[Story], None]:
    """These folders of a checkout."""

    def bring(story: Story) -> None:
        for name in names:
            story.traveller.type(f"mkdir -p {Path(name).parent} && cp -r {ROOT / name} {name}")

    return bring


def have_mnist(story: Story) -> None:
    """Files as MNIST's, with noise for digits: enough to see that commands work."""
    random = np.random.default_rng(3)
    folder = story.traveller.work / "data" / "mnist"
    folder.mkdir(parents=True)
    for part, count in (("train", 2000), ("t10k", 300)):
        images = random.integers(0, 256, (count, 28, 28), np.uint8)
        labels = random.integers(0, 10, count).astype(np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            sizes = struct.pack(f">{array.ndim}I", *array.shape)
            data = bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(data, 1))
    story.traveller.own()


def have_done_the_python(story: Story) -> None:
    """What the page's Python does, with its transcript in this folder."""
    code = "\n".join(blocks(story.page, "python")).replace("Path(tempfile.mkdtemp())", "Path()")
    story.traveller.write("page.py", code)
    story.traveller.type("python page.py")


# --- the pages ----------------------------------------------------------------------------------------------


def have_a_checkout(story: Story) -> None:
    have("reproduction")(story)
    have_mnist(story)


def have_settings(story: Story) -> None:
    """The page's own file, for three versions."""
    (settings,) = blocks(story.page, "toml")
    story.traveller.write("mine.toml", re.sub(r"versions = \d+", "versions = 3", settings))
    have_mnist(story)


def other_run(story: Story) -> None:
    story.traveller.type("basecagg run mine.toml --seed 8 --out runs/other")


FEW = (r"$", " --versions 2 --set users=12 --set buffer_size=4")
RUN = "test_clone.py::test_make_run"
TEST = "test_clone.py::test_make_test"
FEDERATION = "test_clone.py::test_make_federation"

RUNS: dict[str, Walk] = {
    "README.md": Walk(
        first=have_a_checkout,
        steps=[
            elsewhere("make run", RUN),
            elsewhere("make test", TEST),
            typed("pip install "),
            typed("pip install ."),
            typed("basecagg plan --holders 100"),
            typed("basecagg run --method fedbuff --method basecagg", FEW),
            typed("basecagg audit runs/mnist/basecagg/transcript.jsonl"),
            typed("basecagg reproduce accuracy-mnist", ("--quick", "--smoke")),
        ],
    ),
    "docs/index.md": Walk(
        steps=[
            elsewhere("make run", RUN),
            elsewhere("make test", TEST),
            typed("pip install "),
        ]
    ),
    "docs/tutorial/dialysis.md": Walk(
        steps=[
            elsewhere("make study", "test_clone.py::test_make_study"),
            elsewhere(
                ".venv/bin/python examples/dialysis/service.py",
                "test_clone.py::test_the_step_after_the_study",
            ),
            elsewhere(
                "basecagg join centre-0120.invitation",
                "test_clone.py::test_the_step_after_the_study",
            ),
            elsewhere(
                ".venv/bin/python examples/dialysis/over_network.py",
                "test_clone.py::test_the_study_over_the_network",
            ),
        ]
    ),
    "docs/tutorial/training-run.md": Walk(
        steps=[
            typed("pip install "),
            typed("basecagg run"),
            typed("basecagg run --settings"),
            typed("basecagg run --method fedbuff --method basecagg --set partition", SHORT),
            typed("basecagg run --method basecagg --set holder_dropout=0.25", SHORT),
            typed("basecagg run --method ldp --set noise=0.5", SHORT),
            typed("basecagg run mine.toml", first=have_settings),
            typed("basecagg run --resume runs/mine"),
            typed("basecagg run --method fedasync --method fedbuff", ("=600", "=30")),
            typed("basecagg run --method fedavg", ("=120", "=10")),
            typed("basecagg report", first=other_run),
        ]
    ),
    "docs/how-to/attackers.md": Walk(
        steps=[
            typed("basecagg run --method fedbuff --method basecagg --attack ipm", SHORT),
            typed("basecagg run --method basecagg --attack ipm", SHORT),
            typed("basecagg plan --holders 100 --max-dropouts 0.3 --model-size"),
        ]
    ),
    "docs/how-to/audit.md": Walk(
        first=have_done_the_python, steps=[typed("basecagg audit transcript.jsonl")]
    ),
    "docs/how-to/auto-tuning.md": Walk(steps=[typed("basecagg run --method basecagg", SHORT)]),
    "docs/how-to/choose-a-budget.md": Walk(
        first=have_mnist,
        steps=[
            typed("basecagg plan --holders 30"),
            typed(
                "basecagg run --method basecagg-dp",
                ("users=6000", "users=200"),
                (r"(?<==)600\b", "100"),
                ("--versions 28", "--versions 2"),
            ),
            typed("basecagg plan --holders 10"),
        ],
    ),
    "docs/how-to/plan-a-federation.md": Walk(
        steps=[
            typed("basecagg plan --holders 100 --max-dropouts 0.3 --model-size"),
            typed("basecagg plan --holders 100 --max-dropouts 0.3 --max-colluders 20"),
            typed("basecagg plan --holders 100 --max-dropouts 30 --max-colluders 50", status=2),
        ]
    ),
}
