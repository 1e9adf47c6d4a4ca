"""The harness itself: what it checks must be able to fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from deployment_stores import AnswerBook

from basecagg.protocol.messages import MaskName
from basecagg.protocol.stored import HeldShare
from processes import Processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
_RUNAWAY = "import subprocess as s; s.run(['sleep', '60'], start_new_session=True)"


def shares(**digests: bytes) -> dict[str, HeldShare]:
    """What a store says: masks by name, and the request each was answered for."""
    return {
        mask: HeldShare(
            name=MaskName(mask, bytes(16)),
            dealer_key=b"",
            parcel_hash=b"",
            state="spent" if digest else "held",
            digest=digest,
        )
        for mask, digest in digests.items()
    }


def test_a_kill_reaches_children_that_left_the_session(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    with processes.stopped_at_the_end():
        processes.start("one", sys.executable, "-c", _RUNAWAY)
        processes.start("two", "sleep", "60")
        processes.wait_until(lambda: len(processes.leftovers()) == 3, "both, and the child of one")
        processes.kill("one")
        assert len(processes.leftovers()) == 1
        assert processes.is_running("two")


def test_a_process_that_ends_badly_is_an_error(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("bad", sys.executable, "-c", "import sys; sys.exit('no luck')")
    with pytest.raises(AssertionError, match="no luck"):
        processes.finish("bad")


def test_answers_of_a_healthy_federation_are_accepted() -> None:
    book = AnswerBook()
    for node in range(3):
        book.look(node, shares(a=b"1", b=b"1", c=b"2", d=b"2", e=b""))
    assert book.violations(buffer_size=2) == []


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        ([(0, shares(a=b"1", b=b"1")), (1, shares(a=b"2", b=b"2"))], "2 requests"),
        ([(0, shares(a=b"1", b=b"1")), (0, shares(a=b"2", b=b"2"))], "2 requests"),
        ([(0, shares(a=b"1"))], "has 1 masks"),
        ([(0, shares(a=b"1", b=b"1")), (1, shares(a=b"1"))], "for 1 masks of a request of 2"),
    ],
    ids=["by two nodes", "by one node over time", "a sum of one", "a part of a sum"],
)
def test_a_mask_that_is_answered_twice_or_alone_is_noticed(
    looks: list[tuple[int, dict[str, HeldShare]]], words: str
) -> None:
    book = AnswerBook()
    for node, held in looks:
        book.look(node, held)
    assert any(words in each for each in book.violations(buffer_size=2))
