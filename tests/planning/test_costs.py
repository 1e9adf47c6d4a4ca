"""Bytes, seconds and storage, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from basecagg.parameters import ProtocolParameters
from basecagg.planning.costs import (
    SEALED_OVERHEAD,
    SIGNED_OVERHEAD,
    TICKET,
    Network,
    live_masks_each,
    phases,
    storage_per_holder,
    wire_seconds,
)
from basecagg.protocol.epoch import Agreement

# U − T = 4 and d = 10 numbers: shares of ⌈11/4⌉ = 3 numbers = 12 bytes, padded to 12 numbers = 48 bytes.
SMALL = ProtocolParameters(
    num_users=8,
    recovery_threshold=6,
    max_colluders=2,
    max_dropouts=0,
    buffer_size=5,
    model_size=10,
)


def test_bytes_of_every_phase() -> None:
    deal, keep, download, upload, recover = phases(SMALL)
    assert (deal.up, deal.down) == (8 * (12 + SEALED_OVERHEAD) + SIGNED_OVERHEAD, 0)
    assert keep.down == 5 * (12 + SEALED_OVERHEAD + SIGNED_OVERHEAD)
    assert (download.up, download.down) == (0, 40)
    assert (upload.up, upload.down) == (48 + TICKET, 0)
    assert recover.up == 12 + 2 * SIGNED_OVERHEAD
    assert recover.down == 5 * TICKET + 6 * SIGNED_OVERHEAD + SIGNED_OVERHEAD  # quorum ⌊10/2⌋ + 1


def test_an_honest_server_needs_no_certificate() -> None:
    recover = phases(replace(SMALL, consistency="honest-server"))[-1]
    assert recover.up == 12 + SIGNED_OVERHEAD
    assert recover.down == 5 * TICKET + SIGNED_OVERHEAD


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
