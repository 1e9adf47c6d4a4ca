"""All stores are one dictionary to a machine: what is committed is there, in order, also after a restart."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_kinds import StoreKind

from basecagg.errors import LocalProtocolError
from basecagg.protocol.effects import Forget, MaskEnded, Persist
from basecagg.protocol.messages import MaskName

NAMES = ["held", "share", "parcel:7", "held "]
KEYS = ["", "a", "B", "a/1", "a/10", "a/2", "é", "\uffff", "😀", "z" * 300]
RECORDS = (st.sampled_from(NAMES), st.sampled_from(KEYS))
# Empty, small, with zeros inside, and longer than some pages.
VALUES = st.one_of(st.binary(max_size=40), st.sampled_from([b"\0" * 5, bytes(range(256)) * 300]))
WRITE = st.one_of(st.builds(Persist, *RECORDS, VALUES, st.booleans()), st.builds(Forget, *RECORDS))
STEPS = st.lists(st.one_of(st.lists(WRITE, max_size=12), st.just("restart")), max_size=8)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_store_is_a_dictionary(kind: StoreKind, steps):
    with tempfile.TemporaryDirectory() as folder:
        store, model = kind.open(Path(folder)), {}
        for step in steps:
            if step == "restart":
                store = kind.reopen(store, Path(folder))
            else:
                store.commit(step)
                carry_out(step, model)
            assert content(store) == model
        for name, key in itertools.product(NAMES, KEYS):
            assert store.read(name, key) == model.get((name, key))
        kind.close(store)


def carry_out(writes, model):
    for write in writes:
        if isinstance(write, Persist):
            model[write.kind, write.key] = write.value
        else:
            model.pop((write.kind, write.key), None)


def content(store):
    """Everything in the store, in the order of its keys."""
    found = {name: store.scan(name) for name in NAMES}
    assert all(rows == sorted(rows) for rows in found.values())
    assert all(store.keys(name) == [key for key, _ in rows] for name, rows in found.items())
    return {(name, key): value for name, rows in found.items() for key, value in rows}


def test_what_is_not_there_is_none(kind, tmp_path):
    store = kind.open(tmp_path)
    store.commit([])
    store.commit([Forget("held", "never written")])
    assert store.read("held", "never written") is None
    assert list(store.scan("held")) == []
    kind.close(store)


def test_a_bad_write_in_the_middle_leaves_nothing(kind, tmp_path):
    store = kind.open(tmp_path)
    store.commit([Persist("held", "old", b"1")])
    news = MaskEnded(MaskName("ann", bytes(16)), "opened")
    with pytest.raises(LocalProtocolError, match="not MaskEnded"):
        store.commit([Persist("held", "new", b"2"), news, Forget("held", "old")])
    assert store.scan("held") == [("old", b"1")]
    kind.close(store)


def test_what_was_scanned_is_not_changed_by_later_writes(kind, tmp_path):
    store = kind.open(tmp_path)
    store.commit([Persist("held", str(number), b"") for number in range(5)])
    for key, _ in store.scan("held"):
        store.commit([Forget("held", key)])
    assert store.scan("held") == []
    kind.close(store)


def test_a_store_never_shows_what_it_holds(kind, tmp_path):
    store = kind.open(tmp_path)
    store.commit([Persist("share", "ann", b"a secret")])
    assert "secret" not in repr(store)
    kind.close(store)
