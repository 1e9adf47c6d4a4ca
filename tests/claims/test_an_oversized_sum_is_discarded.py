"""A mask hides an unclipped update, the sum does not: one that clipped updates cannot have is discarded."""

import numpy as np
import pytest
from parties import (
    SIZE,
    USERS,
    abandoned,
    fresh_update,
    make_federation,
    one_round,
    released,
    submit,
)

from basecagg.protocol import masking, recomputation
from basecagg.protocol.effects import Uploaded

MODES = pytest.mark.parametrize("consistency", ["certified", "honest-server"])


@pytest.fixture
def unclipped(monkeypatch):
    """A contributor that leaves the clipping out."""

    def copy(update, clip, *, out):
        out[:] = update
        return out, 0

    monkeypatch.setattr(masking, "clip_update", copy)


@MODES
@pytest.mark.parametrize("sign", [1, -1])
def test_the_model_stays_and_training_goes_on(unclipped, consistency, sign):
    federation = make_federation(consistency=consistency)
    update = fresh_update()
    update[7] = sign * 13.0  # three honest ones at B = 4 reach 12 at most
    submit(federation, "mallory", update)
    for name in USERS[:2]:
        submit(federation, name, np.zeros(SIZE) + fresh_update(0.001))
    federation.network.run()
    (news,) = abandoned(federation)
    assert "larger than clipped updates can make it" in news.reason
    assert federation.server.version == 0
    assert not federation.server.model.any()
    one_round(federation, USERS[3:6])
    assert federation.server.version == 1


def test_three_clipped_ones_at_the_bound_are_fine():
    """K·c_g·(c_l·B + 1) is never reached by honest updates."""
    federation = make_federation()
    for name in USERS[:3]:
        submit(federation, name, np.full(SIZE, 4.0) - np.arange(SIZE) * 1e-3 * int(name[-1]))
    federation.network.run()
    assert len(released(federation)) == 1


def test_clipping_is_done_and_counted():
    federation = make_federation()
    update = np.zeros(SIZE)
    update[:5] = [100, -100, 4.0, -4.0, 4.1]
    submitted = submit(federation, "ann", update)
    p = federation.agreement.parameters
    assert submitted.quantized[:5].tolist() == [c * p.update_levels for c in (4, -4, 4, -4, 4)]
    (news,) = [each for each in federation.take_news() if isinstance(each, Uploaded)]
    assert news.clipped == 3


def test_control_without_the_check_the_model_is_spoilt(unclipped, monkeypatch):
    real = recomputation._unmask
    monkeypatch.setattr(recomputation, "_unmask", lambda *given: (real(*given)[0], 0))
    federation = make_federation()
    submit(federation, "mallory", np.full(SIZE, 13.0))
    one_round(federation, USERS[:2])
    assert np.abs(federation.server.model).max() > 4
