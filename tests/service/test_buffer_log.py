"""What became of each buffer is written down with the step itself, and counted once."""

from __future__ import annotations

import numpy as np
from parties import SIZE, make_federation

from basecagg.protocol.effects import Released
from basecagg.protocol.messages import MaskName
from basecagg.service.server.buffer_log import stored_entries
from basecagg.service.server.host import EpochHost
from basecagg.service.server.registry import Charter
from basecagg.storage.in_memory import MemoryStore

OPEN = Charter(phase="open")
MEMBERS = (MaskName("alice", bytes(16)), MaskName("bob", bytes(16)))
CORRECTED = Released(0, MEMBERS, (0, 0), (1.0, 1.0), np.zeros(SIZE), inconsistent_holders=(1,))


def test_a_step_that_was_undone_is_not_counted_twice() -> None:
    federation = make_federation()
    agreement, signer, store = federation.agreement, federation.identity("server"), MemoryStore()
    host = EpochHost(agreement, signer, store, np.zeros(SIZE, np.float32), OPEN)
    name = agreement.holder_names[1]
    host.server._perform([CORRECTED])
    assert host.buffer_log.inconsistent == {name: 1}
    host.recover(OPEN)  # before the step was durable
    assert host.buffer_log.inconsistent == {}
    assert host.buffer_log.take_news() == []
    host.server._perform([CORRECTED])
    host.flush()
    assert host.buffer_log.inconsistent == {name: 1}
    assert [entry.outcome for entry in host.buffer_log.take_news()] == ["opened"]
    again = EpochHost(agreement, signer, store, np.zeros(SIZE, np.float32), OPEN)
    assert again.buffer_log.inconsistent == {name: 1}
    assert len(stored_entries(store)) == 1
