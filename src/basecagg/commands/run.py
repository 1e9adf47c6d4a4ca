"""`basecagg run`: a complete secure aggregation in memory, arithmetic only, with its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from basecagg.commands import _values
from basecagg.commands._kernels import load_kernels
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.prime_field import PrimeField
from basecagg.maths.quantization import quantize, quantize_and_mask, signed
from basecagg.maths.randomness import FieldStream, Seed, Words, WordStream, derive_seed, new_seed
from basecagg.maths.staleness import quantized_weight
from basecagg.parameters import ProtocolParameters
from basecagg.planning.costs import ELEMENT
from basecagg.planning.planner import Wishes, plan

Integers = npt.NDArray[np.int64]


@click.command("run")
@click.option(
    "--users",
    type=int,
    default=100,
    show_default=True,
    metavar="N",
    help="Holders of shares, N.",
)
@click.option(
    "--dropouts",
    type=_values.portion,
    default="0.3",
    show_default=True,
    metavar="D",
    help="Holders that vanish before the sum is opened, D: a number (30) or a part (0.3 or 30%).",
)
@click.option(
    "--model-size",
    type=_values.size,
    default="1e6",
    show_default=True,
    metavar="d",
    help="Numbers in one update, d.",
)
def command(*, users: int, dropouts: _values.Portion, model_size: int) -> None:
    """Run a complete secure aggregation in memory and print its numbers.

    K contributors deal masks to N holders and upload masked random updates of different ages. D holders
    vanish. The others answer, the sum is opened and compared with the plain sum, bit for bit.
    """
    wishes = Wishes(num_users=users, max_dropouts=dropouts.of(users), model_size=model_size)
    p = plan(wishes).parameters
    console = Console(highlight=False)
    console.print(
        f"N = {p.num_users} holders, D = {p.max_dropouts} vanish, T = {p.max_colluders} may collude,"
        f" U = {p.recovery_threshold} answers open a sum of K = {p.buffer_size} updates of d ="
        f" {p.model_size:,} numbers."
    )
    load_kernels()
    stopwatch = Stopwatch()
    opened, plain = aggregate(p, stopwatch)
    console.print(_table(p, stopwatch))
    if not np.array_equal(opened, plain):
        raise click.ClickException("the opened sum differs from the plain sum: please report this")
    console.print(
        f"The opened sum equals the plain sum, bit for bit, in all {opened.size:,} numbers."
    )


class Stopwatch:
    """Seconds of every phase."""

    def __init__(self) -> None:
        """Start with nothing measured."""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        start = perf_counter()
        yield
        self.seconds[name] = perf_counter() - start


def aggregate(p: ProtocolParameters, stopwatch: Stopwatch) -> tuple[Integers, Integers]:
    """Open one buffer securely; give the opened sum and the plain one, both with padding."""
    field = PrimeField(p.modulus)
    code = MaskCode(p.num_users, p.recovery_threshold, p.max_colluders, modulus=p.modulus)
    rng = np.random.default_rng()
    updates = [_random_update(p, rng) for _ in range(p.buffer_size)]
    weights = np.array([_random_weight(p, rng) for _ in updates], np.uint32)
    seeds = [new_seed() for _ in updates]

    with stopwatch.phase("deal"):
        dealt = [_deal(p, code, seed) for seed in seeds]
    with stopwatch.phase("mask"):
        uploads = [
            quantize_and_mask(update, p.update_levels, p.modulus, _coins(p, seed), mask)
            for update, seed, (mask, _) in zip(updates, seeds, dealt, strict=True)
        ]
    present = rng.permutation(p.num_users)[p.max_dropouts :][: p.recovery_threshold]
    with stopwatch.phase("answer"):
        answers = {
            int(holder): field.weighted_sum([s[holder] for _, s in dealt], weights)
            for holder in present
        }
    with stopwatch.phase("open"):
        masked_sum = field.weighted_sum(uploads, weights)
        opened = signed(field.sub(masked_sum, code.decode(answers)), p.modulus)

    plain = np.zeros_like(opened)
    for update, seed, weight in zip(updates, seeds, weights, strict=True):
        rounded = quantize(update, p.update_levels, p.modulus, _coins(p, seed))
        plain += int(weight) * signed(rounded, p.modulus)
    return opened, plain


def _random_update(p: ProtocolParameters, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    update = np.zeros(p.padded_size, np.float32)
    update[: p.model_size] = rng.uniform(-p.clip, p.clip, p.model_size)
    return update


def _random_weight(p: ProtocolParameters, rng: np.random.Generator) -> int:
    age = int(rng.integers(p.max_staleness + 1))
    return quantized_weight(p.staleness, age, p.weight_levels, rng.bytes(16), p.weight_rounding)


def _deal(p: ProtocolParameters, code: MaskCode, seed: Seed) -> tuple[Words, Words]:
    mask = FieldStream(derive_seed(seed, "mask"), p.modulus).draw(p.padded_size)
    noise = FieldStream(derive_seed(seed, "noise"), p.modulus).draw(p.max_colluders * p.share_size)
    return mask, code.encode(mask, noise.reshape(p.max_colluders, p.share_size))


def _coins(p: ProtocolParameters, seed: Seed) -> Words:
    return WordStream(derive_seed(seed, "rounding")).draw(p.padded_size)


def _table(p: ProtocolParameters, stopwatch: Stopwatch) -> Table:
    share, upload = ELEMENT * p.share_size, ELEMENT * p.padded_size
    table = Table("phase", "what", box=None, pad_edge=False, header_style="dim")
    for header in ("doers", "time each", "bytes each"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, what, doers, size in (
        (
            "deal",
            f"draw a mask, encode it for {p.num_users} holders",
            p.buffer_size,
            share * p.num_users,
        ),
        ("mask", "quantise the update, add the mask", p.buffer_size, upload),
        ("answer", "weighted sum of shares", p.recovery_threshold, share),
        ("open", "weighted sum of uploads, decode, subtract", 1, upload),
    ):
        each = stopwatch.seconds[name] / doers
        table.add_row(name, what, f"{doers}", f"{each * 1e3:.2f} ms", f"{size:,}")
    return table
