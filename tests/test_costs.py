"""Bytes, seconds and storage: against the wire, and against numbers worked out by hand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from basecagg.channels.sealing import OVERHEAD
from basecagg.channels.wire import pack
from basecagg.costs import (
    Network,
    live_masks_each,
    message_bytes,
    phases,
    shares_bytes,
    storage_per_holder,
    wire_seconds,
)
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Forget
from basecagg.protocol.epoch import Agreement
from basecagg.protocol.messages import Certificate, ShortRequest
from reproduction.bench import Address, Federation, Letter

# U − T = 4 and d = 10 numbers: shares of ⌈11/4⌉ = 3 numbers = 12 bytes, padded to 12 numbers = 48 bytes.
SMALL = ProtocolParameters(
    num_holders=8,
    recovery_threshold=6,
    max_colluders=2,
    max_dropouts=0,
    buffer_size=5,
    model_size=10,
)
KEYS = ProtocolParameters(
    num_holders=8,
    recovery_threshold=6,
    max_colluders=2,
    max_dropouts=0,
    buffer_size=5,
    model_size=5000,
)
"""Shares of ⌈2050/4⌉ = 513 words of three bytes, uploads of 5000 words and a pad."""
HONEST = replace(SMALL, consistency="honest-server")


LATE = "user-7"


def on_the_wire(p: ProtocolParameters) -> dict[str, list[int]]:
    """Bytes of every message of one sum, by kind, at a version above τ_max. One holder cannot follow."""
    federation = Federation(p, np.zeros(p.model_size, np.float32))
    network, late = federation.network, Address("holder", LATE)
    seen: defaultdict[str, list[int]] = defaultdict(list)
    for _ in range(p.max_staleness + 2):
        one_sum(federation)
    network.nodes[late].store.commit([Forget("question", ""), Forget("certified", "")])
    federation.start(late)

    def weigh(letter: Letter) -> None:
        """And the long form of every question, which somebody else might need."""
        message, opening = letter.message, federation.server.opening
        messages = [message]
        if isinstance(message, ShortRequest | Certificate):
            messages.append(opening._question())  # type: ignore[attr-defined]
        for each in messages:
            seen[type(each).__name__].append(len(pack(each)))

    network.observers.append(weigh)
    one_sum(federation)
    return seen


def one_sum(federation: Federation) -> None:
    """K users deal masks together and send updates, and their sum opens."""
    network, server, p = federation.network, federation.server, federation.agreement.parameters
    version, names = server.version, [f"user-{index}" for index in range(p.buffer_size)]
    for name in names:
        federation.deal(name)
    network.run()
    for index, name in enumerate(names):
        update = np.full(p.model_size, index / 100 + version / 10, np.float32)
        federation.submit(name, update, server.version, server.head)
    network.run()
    assert server.version == version + 1


@pytest.mark.parametrize(
    "p",
    [
        SMALL,
        HONEST,
        replace(
            SMALL,
            num_holders=40,
            recovery_threshold=24,
            max_dropouts=8,
            buffer_size=9,
            model_size=999,
        ),
        KEYS,
        replace(KEYS, modulus=2**32 - 12287),
    ],
)
def test_every_message_has_the_bytes_of_the_wire(p: ProtocolParameters) -> None:
    expected, seen = message_bytes(p), on_the_wire(p)
    certified = {"Endorsement", "Certificate", "CertifiedRequest"}
    assert set(seen) == set(expected) - (set() if p.consistency == "certified" else certified)
    assert p.word_bytes == (3 if p.modulus == KEYS.modulus else 4)
    for kind, sizes in seen.items():
        print(kind, expected[kind], max(sizes))
        assert max(sizes) == pytest.approx(expected[kind], rel=0.05), kind


def test_a_phase_is_the_sum_of_its_messages() -> None:
    size = message_bytes(SMALL)
    deal, keep, download, upload, recover = phases(SMALL)
    assert (deal.up, deal.down) == (size["Shipment"], 0)
    assert deal.up > shares_bytes(SMALL) == 8 * (12 + OVERHEAD)
    assert (keep.up, keep.down) == (size["Receipt"], 5 * size["Parcel"])
    assert (download.up, download.down) == (0, 40)
    assert (upload.up, upload.down) == (size["Upload"], 0)
    assert recover.up == size["Endorsement"] + size["Answer"]
    assert recover.down == size["ShortRequest"] + size["Certificate"] + size["Closing"]


def test_an_honest_server_needs_no_certificate() -> None:
    size, recover = message_bytes(HONEST), phases(HONEST)[-1]
    assert recover.up == size["Answer"]
    assert recover.down == size["ShortRequest"] + size["Closing"]


def test_time_is_bytes_over_speed_in_each_direction() -> None:
    up = sum(phase.up for phase in phases(SMALL))
    down = sum(phase.down for phase in phases(SMALL))
    seconds = wire_seconds(SMALL, Network(up=2.0, down=8.0))
    assert seconds == pytest.approx(up * 8 / 2e6 + down * 8 / 8e6)


def test_a_holder_stores_a_share_of_every_live_mask() -> None:
    assert storage_per_holder(replace(SMALL, mask_quota=3), contributors=20) == 20 * 6 * 12


def test_holders_keep_as_many_masks_as_the_planner_counts() -> None:
    limit = Agreement.masks_per_contributor.fget
    assert limit is not None
    assert live_masks_each(SMALL) == limit(SimpleNamespace(parameters=SMALL))
