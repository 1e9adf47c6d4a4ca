"""One contributor cannot make an honest server look like a cheat by naming two masks alike.

Server and holders forget a mask's name when it has expired. A name that came back then would be in two requests
of the honest server, which is what a server is convicted for. So a name contains its expiry.
"""

import copy
import os

import pytest
from parties import (
    USERS,
    asked_by,
    make_federation,
    released,
    submit,
)

from basecagg.auditing.leakage import audit
from basecagg.auditing.recorder import Recorder
from basecagg.auditing.transcript import Transcript
from basecagg.channels.identity import Ed25519Verifier
from basecagg.errors import NotProven
from basecagg.protocol.model_watch import ModelWatch
from basecagg.protocol.proofs import DoubleRequest, Evidence
from basecagg.protocol.recomputation import judge
from basecagg.storage.in_memory import MemoryStore

SERIAL = b"S" * 16
LIAR = USERS[0]


def a_name_that_comes_back(max_staleness=3):
    """All requests of an honest server; in two of them the liar has a mask of the same serial number."""
    federation = make_federation(max_staleness=max_staleness)
    requests, lines = asked_by(federation), []
    recorder = Recorder(federation.agreement, lines.append)
    observers = federation.network.observers
    observers.append(lambda letter: recorder.see(letter.sender, letter.message))
    liar = federation.contributor(LIAR)
    liar._parameters = copy.copy(liar._parameters)  # it signs the expiry that it likes
    object.__setattr__(liar._parameters, "mask_lifetime", max_staleness)
    liar._entropy = lambda count: SERIAL if count == len(SERIAL) else os.urandom(count)
    while federation.server.version < 3 * max_staleness:
        try:
            for name in USERS[:3]:
                submit(federation, name)
        except IndexError:  # the liar's mask was refused, so it has none
            federation.network.in_flight.clear()
            liar._masks.clear()
            for name in USERS[1:4]:
                submit(federation, name)
        federation.network.run()
        assert released(federation)
    both = [r for r in requests if any(mask.serial == SERIAL for mask in r.masks)]
    return federation, both, lines


def test_its_own_words_do_not_convict_it():
    federation, both, lines = a_name_that_comes_back()
    assert len(both) >= 2
    key = federation.identity("operator").public_key
    for one in both:
        for other in both:
            evidence = Evidence(federation.agreement.epoch, DoubleRequest(one, other), key)
            with pytest.raises(NotProven):
                judge(evidence, key, Ed25519Verifier())
    watch = ModelWatch(federation.agreement, MemoryStore())  # of a holder that was away in between
    for request in both:
        watch.hear(request)
    assert audit(Transcript(lines)).only_sums
