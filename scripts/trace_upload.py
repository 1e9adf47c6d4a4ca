"""Trace one upload through the code: its files, crossings between rooms, and full copies of the update.

    python scripts/trace_upload.py simulation   # the files and rooms that one upload walks
    python scripts/trace_upload.py service      # the same over HTTPS
    python scripts/trace_upload.py copies       # where the update is copied as a whole, over HTTPS

What is traced is the package that this interpreter imports: an older commit is traced with its own `.venv`.
An upload begins with a trained model and ends with the server's word on it; no sum is opened. The mask grows
from a key, so its shares travel with the update, and in simulation holders keep them on the way. A crossing
is a call from a file of one room to a file of another. Files in no room, as `parameters.py`, are values that
all rooms read; they are passed over.

A copy is counted where one instruction allocates nine tenths of the packed update or more. Memory of the child
process, of SQLite, of TLS and of the kernel is not seen.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import basecagg

SOURCE = Path(basecagg.__file__).parent
TESTS = SOURCE.parents[1] / "tests"
_ELEMENTS = 1_000_000
"""d on the service: a copy of 3 or 4 MB, packed or not, is easily told from everything else."""
_WHOLE = int(0.9 * 3 * _ELEMENTS)
"""Bytes of a full copy, at least."""
_NO_COPIES = ("maths/randomness.py",)
"""Where arrays of that size are made that hold no update: masks and coins."""


@dataclass
class Call:
    """A call of a function of the package, with the calls that it made."""

    place: str
    name: str
    within: list[Call] = field(default_factory=list)

    def walk(self) -> Iterator[Call]:
        """This call and all below it, in the order in which they were made."""
        yield self
        for each in self.within:
            yield from each.walk()

    def has(self, name: str) -> bool:
        """Whether a function of this name was called, here or below."""
        return any(each.name == name for each in self.walk())

    @property
    def files(self) -> list[str]:
        """The files in rooms that it walks, in order."""
        return list(dict.fromkeys(each.place for each in self.walk() if room_of(each.place)))

    @property
    def crossings(self) -> list[tuple[str, str]]:
        """Each call from one room to another, as (room, function)."""
        found: list[tuple[str, str]] = []
        for each in self.within:
            if room_of(self.place) and room_of(each.place) not in ("", room_of(self.place)):
                found.append((room_of(self.place), f"{each.place}: {each.name}"))
            found += each.crossings
        return found


def room_of(place: str) -> str:
    """The folder of a file below the package; nothing for a file in no room."""
    return place.rpartition("/")[0]


class Tracer:
    """Builds the tree of calls while it is `on`. Functions of other packages are passed over."""

    def __init__(self) -> None:
        self.root = Call("", "")
        self.on = False
        self._known: dict[FrameType, Call] = {}
        """By frame: a coroutine that goes on is no new call."""
        self._local = threading.local()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """As `sys.setprofile` wants it."""
        code = frame.f_code
        if not code.co_filename.startswith(f"{SOURCE}/") or code.co_name.startswith("<"):
            return
        stack: list[FrameType] = vars(self._local).setdefault("stack", [])
        if event == "call":
            if self.on and frame not in self._known:
                above = next((each for each in reversed(stack) if each in self._known), None)
                call = Call(str(Path(code.co_filename).relative_to(SOURCE)), code.co_name)
                (self._known[above] if above else self.root).within.append(call)
                self._known[frame] = call
            stack.append(frame)
        elif event == "return" and frame in stack:
            while stack.pop() is not frame:
                pass


@contextmanager
def traced() -> Iterator[Tracer]:
    """Trace this thread and all that begin from now on."""
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        yield tracer
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def in_simulation() -> Call:
    """The upload of a small simulated run that does least besides: holders keep shares, no sum is opened."""
    from basecagg import SimulationConfig, simulate

    with traced() as tracer:
        tracer.on = True
        simulate(SimulationConfig(users=12, buffer_size=4, versions=12))
    finished = [each for each in tracer.root.walk() if each.name == "finish"]
    alone = [f for f in finished if f.has("hide") and f.has("_keep") and not f.has("open_sum")]
    return min(alone, key=lambda each: len(list(each.walk())))


# --- the service ----------------------------------------------------------------------------------


def where(frame: FrameType, line: int) -> str:
    """A line of code, and the one that called its function."""
    places = [(frame.f_code.co_filename, line)]
    if frame.f_back:
        places.append((frame.f_back.f_code.co_filename, frame.f_back.f_lineno))
    names = [f"{Path(*Path(file).parts[-3:])}:{number}" for file, number in places]
    return ", called at ".join(names)


class Copies:
    """What each line allocates while it is `on`, in all threads."""

    def __init__(self) -> None:
        self.on = False
        self.made: Counter[str] = Counter()
        self._current = 0
        self._last: tuple[FrameType, int] | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        """As `sys.settrace` wants it: what was allocated since the last instruction belongs to that one."""
        if not self.on:
            return None
        frame.f_trace_opcodes = True
        current = tracemalloc.get_traced_memory()[0]
        if current - self._current >= _WHOLE and self._last is not None:
            self.made[where(*self._last)] += 1
        self._last, self._current = (frame, frame.f_lineno), current
        return self

    def begin(self) -> None:
        """From now on."""
        self._current, self.on = tracemalloc.get_traced_memory()[0], True


async def _upload(folder: Path, watch: Tracer | Copies) -> None:
    """One member of seven trains in a child process and uploads over HTTPS; `watch` is on from then on."""
    sys.path[:0] = [str(TESTS), str(TESTS / "service"), str(TESTS / "protocol")]
    import service_harness as harness

    from basecagg.service import training
    from basecagg.service.agent.agent import Agent

    parameters = replace(
        harness.SMALL,
        model_size=_ELEMENTS,
        masks=None,  # as usual for this size
        modulus=None,
        recovery_threshold=5,
        max_colluders=1,
        max_dropouts=1,
    )
    names = [f"user-{index}" for index in range(parameters.num_holders)]
    done = asyncio.Event()
    receive, one_update = training._receive, Agent._one_update

    def received(pipe: Any) -> Any:
        parts = pipe.recv_bytes()  # the first of three: the trained model follows
        if isinstance(watch, Copies):
            watch.begin()
        watch.on = True
        return parts, pipe.recv_bytes(), pipe.recv_bytes()

    async def updated(self: Agent, *arguments: Any) -> None:
        await one_update(self, *arguments)
        watch.on = False
        done.set()

    training._receive, Agent._one_update = received, updated  # type: ignore[method-assign, assignment]
    try:
        async with harness.federation(folder) as federation:
            await federation.join(names[1:], lambda name: None)
            await federation.join(
                names[:1], lambda name: training.UserFunction("chaos_training:train")
            )
            await federation.start_epoch(parameters)
            await asyncio.wait_for(done.wait(), 600)
    finally:
        training._receive, Agent._one_update = receive, one_update  # type: ignore[method-assign]


def on_service() -> Call:
    """The calls of one upload over HTTPS."""
    with tempfile.TemporaryDirectory() as folder, traced() as tracer:
        asyncio.run(_upload(Path(folder), tracer))
    return tracer.root


def copies_on_service() -> Counter[str]:
    """Where the update is copied as a whole, and how often."""
    copies = Copies()
    tracemalloc.start()
    threading.settrace(copies)
    sys.settrace(copies)
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_upload(Path(folder), copies))
    finally:
        sys.settrace(None)
        threading.settrace(None)
        tracemalloc.stop()
    made = copies.made.items()
    return Counter({place: n for place, n in made if not any(f in place for f in _NO_COPIES)})


def rendered(call: Call) -> list[str]:
    """The rooms that a walk visits, with their files, and what it calls over there."""
    lines = [f"{len(call.files)} files, {len(call.crossings)} crossings"]
    for room, files in groupby(sorted(call.files, key=room_of), key=room_of):
        lines.append(f"  {room}: {' '.join(file.rpartition('/')[2][:-3] for file in files)}")
    called = Counter(f"{room} → {function}" for room, function in call.crossings)
    return [*lines, *(f"  {times} × {what}" for what, times in called.items())]


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("simulation", "service", "copies"))
    what = parser.parse_args().what
    os.environ["PYTHONPATH"] = str(TESTS / "service")  # where the child finds its training
    if what == "simulation":
        print(*rendered(in_simulation()), sep="\n")
    elif what == "service":
        print(*rendered(on_service()), sep="\n")
    else:
        made = copies_on_service()
        print(f"{made.total()} full copies")
        print(*(f"  {times} × {place}" for place, times in made.most_common()), sep="\n")


if __name__ == "__main__":
    main()
