"""LightSecAgg and BASecAgg through the same machines: exact within their bound, nothing opened beyond it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from basecagg.maths.quantization import quantize
from basecagg.maths.randomness import WordStream, derive_seed
from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Abandoned, Released
from basecagg.protocol.messages import Answer
from basecagg.protocol.stored import OwnMask, parse
from basecagg.simulation.protections import IN_ROUNDS
from reproduction.bench import AT_SERVER, Address, Federation

N, D, K, SIZE = 5, 2, 3, 20
BUFFERED = {"staleness": polynomial(1.0), "max_staleness": 10}
PAPERS = BUFFERED | {"weights": "field", "weight_levels": 64}
KINDS = pytest.mark.parametrize(
    "ages", [IN_ROUNDS, BUFFERED, PAPERS], ids=["lightsecagg", "basecagg", "field weights"]
)


def federation(ages: dict[str, Any]) -> Federation:
    parameters = ProtocolParameters(
        num_holders=N,
        recovery_threshold=N - D,
        max_colluders=1,
        max_dropouts=D,
        buffer_size=K,
        model_size=SIZE,
        consistency="honest-server",
        **ages,
    )
    return Federation(parameters, np.zeros(SIZE, np.float32), cryptography=False)


def run(ages: dict[str, Any], uploading: tuple[int, ...], gone: set[int]) -> Any:
    """All deal; some upload; the holders `gone` hear no request. Returns what the server said, and the sum."""
    parties = federation(ages)
    p, server = parties.agreement.parameters, parties.server
    for user in range(N):
        parties.deal(f"user-{user}")
    parties.network.run()
    generator, plain = np.random.default_rng(sum(uploading)), np.zeros(SIZE, np.int64)
    for user in gone:
        parties.stop(Address("holder", f"user-{user}"))
    for user in uploading:
        update = generator.normal(0, 0.5, SIZE).astype(np.float32)
        plain += _quantized(parties, f"user-{user}", update)
        parties.submit(f"user-{user}", update, server.version, server.head)
    answers: list[Answer] = []
    parties.network.observers.append(
        lambda letter: (
            answers.append(letter.message) if isinstance(letter.message, Answer) else None
        )
    )
    parties.network.run()
    for _ in range(2):
        parties.network.perform(AT_SERVER, server.deadline())
        parties.network.run()
    news = [each for each in parties.take_news() if isinstance(each, Released | Abandoned)]
    return news, plain, p.weight_levels, answers


def _quantized(parties: Federation, name: str, update: Any) -> Any:
    """What the contributor will round to, from the seed of the mask that it will use."""
    contributor = parties.contributor(name)
    node = parties.network.nodes[Address("contributor", name)]
    record = node.store.read("mask", contributor.ready[0].key)
    assert record is not None
    p = parties.agreement.parameters
    coins = WordStream(derive_seed(parse(record, OwnMask).seed, "rounding")).draw(p.padded_size)
    field = quantize(update, p.update_levels, p.modulus, coins[:SIZE]).astype(np.int64)
    return np.where(field > p.modulus // 2, field - p.modulus, field)


@KINDS
@pytest.mark.parametrize("count", [0, 1, 2])
def test_every_dropout_pattern_up_to_the_bound_gives_the_plain_sum(
    ages: dict[str, Any], count: int
) -> None:
    for uploading in combinations(range(N), K):
        for gone in combinations(range(N), count):
            news, plain, levels, _ = run(ages, uploading, set(gone))
            (opened,) = news
            assert isinstance(opened, Released)
            scaled = opened.weighted_sum * 2**16
            assert np.array_equal(scaled, levels * plain)


@KINDS
def test_with_one_holder_too_few_nothing_opens(ages: dict[str, Any]) -> None:
    for gone in combinations(range(N), D + 1):
        news, _, _, answers = run(ages, (0, 1, 2), set(gone))
        assert news == []
        assert len({answer.holder for answer in answers}) < N - D  # too few to decode the sum
