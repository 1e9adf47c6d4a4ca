"""A study over real TLS on this machine: all in one event loop, but the analyst in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from basecagg.channels.wire import pack
from basecagg.protocol.floor import LocalFloor
from basecagg.protocol.questions import StudyTerms
from basecagg.protocol.step_rule import StepRule
from basecagg.service.agent.local_member import LocalMember
from basecagg.service.agent.profile import Profile
from basecagg.service.connection import Patience
from basecagg.service.documents import to_json
from basecagg.service.server.core import Service
from basecagg.statistics.centre import StudyAnswers
from basecagg.statistics.desk_folder import DeskFolder
from basecagg.statistics.protocol_file import RATE, StudyProtocol, parse
from basecagg.statistics.remote import RemoteStudy

QUICK = Patience(0.02, 0.3)
Rows = dict[str, np.ndarray]


def protocol_text(
    members: Iterable[str], *, most: int, columns: str, asked: str, more: str = ""
) -> str:
    names = ", ".join(f'"{name}"' for name in members)
    return f"""
[study]
title = "A study"
question = "What is there to be seen?"
analyst = "ana"
members = [{names}]
most = {most}
{columns}
{more}
{asked}
"""


def write_desk(folder: Path, rows: Rows) -> None:
    """A centre's folder: its records as CSV, and the mapping file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(f"OWN_{name}" for name in rows)]
    lines += [
        ",".join(f"{value!r}" for value in row)
        for row in zip(*(v.tolist() for v in rows.values()), strict=True)
    ]
    (folder / "records.csv").write_text("\n".join(lines) + "\n")
    columns = "".join(f'{name} = {{ from = "OWN_{name}" }}\n' for name in rows)
    (folder / "mapping.toml").write_text(f'[source]\ncsv = "records.csv"\n[columns]\n{columns}')


class NetworkStudy:
    """A study with its centres as agents."""

    def __init__(self, federation: Any, centres: dict[str, Rows], text: str) -> None:
        self.federation = federation
        self.centres = centres
        self.protocol: StudyProtocol = parse(text)
        self.analyst: Profile | None = None
        for name, rows in centres.items():
            write_desk(self.folder / "desks" / name, rows)

    @property
    def folder(self) -> Path:
        return Path(self.federation.folder)

    def desk(self, name: str) -> DeskFolder:
        return DeskFolder(self.folder / "desks" / name, self.folder / "anchors")

    def launch(self, name: str) -> None:
        """Start a centre's agent, the first time or again."""
        profile = self.federation.profile(name)
        self.federation.launch(profile, StudyAnswers(profile, self.desk(name), QUICK))

    async def begin(self, *, approve: bool = True) -> None:
        """Enrol everybody, sign the protocol, approve it at every desk."""
        federation = self.federation
        for name in self.centres:
            federation.profile(name, await federation.invite(name))
            self.launch(name)
        self.analyst = federation.profile("ana", await federation.invite("ana", "analyst"))
        member = LocalMember(self.analyst, LocalFloor(), self.folder / "anchors", contributes=False)
        key = pack(member.announce())
        member.close()
        line = self.analyst.connect()
        await line.enrol(to_json(self.analyst.enrolment(key)))
        await line.close()
        await federation.admit([*self.centres, "ana"])
        await self.start()
        if approve:
            for name in self.centres:
                await self.approve(name)

    async def start(self) -> None:
        office, said = self.federation.operator, self.protocol
        key = office.machine.people["ana"].signing_key
        self.terms = StudyTerms(office.federation, said.text, "ana", key)

        async def keys_are_there() -> bool:
            await office.look()
            return not office.machine.missing()

        await self.federation.until(keys_are_there)
        await office.set_model(np.zeros(said.size, np.float32))
        await office.start(said.parameters, StepRule(rate=RATE), terms=self.terms, max_burns=0)

    async def approve(self, name: str) -> None:
        desk = self.desk(name)
        beginning = self.terms.contract.hex()[:12]

        async def has_come() -> bool:
            return any(w.terms == self.terms for w in await asyncio.to_thread(desk.studies))

        await self.federation.until(has_come)
        await asyncio.to_thread(lambda: desk.approve(desk.study(beginning), "a person"))

    async def ask(self, work: Callable[[RemoteStudy], Any], folder: str = "results") -> Any:
        """Let the analyst work, in a thread of its own."""
        return await asyncio.to_thread(partial(self._ask, work, folder))

    def _ask(self, work: Callable[[RemoteStudy], Any], folder: str) -> Any:
        assert self.analyst is not None
        with RemoteStudy(self.analyst, self.folder / folder, patience=QUICK) as study:
            return work(study)


class LeavingStudy(NetworkStudy):
    """The first two centres leave as soon as the server has their answers, and come back for the next question.

    The last centre waits with its answer until they are gone: so no sum is opened before.
    """

    GONE = 2

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.uploaded: set[str] = set()
        """Whose answers to the present question the server has."""
        self.left = 0
        """How often somebody was gone when a sum was opened."""
        receive = Service.receive

        async def see(service: Service, sender: str, frame: bytes) -> None:
            await receive(service, sender, frame)
            if b"Upload" in frame[:16]:
                self.uploaded.add(sender)

        Service.receive = see  # type: ignore[method-assign]
        self.restore = lambda: setattr(Service, "receive", receive)

    def launch(self, name: str) -> None:
        profile, last = self.federation.profile(name), list(self.centres)[-1]
        answers = Held(profile, self.desk(name), QUICK)
        answers.study = self if name == last else None
        self.federation.launch(profile, answers)

    async def ask_while_some_leave(self, work: Callable[[RemoteStudy], Any]) -> Any:
        """Let the analyst ask one question; its sum is opened without the two."""
        self.uploaded.clear()
        found = await self.ask(work)
        for name in list(self.centres)[: self.GONE]:
            if name not in self.federation.agents:
                self.launch(name)
        return found

    async def leave(self) -> None:
        """Once all others have uploaded, two go."""
        others = set(self.centres) - {list(self.centres)[-1]}

        async def have_uploaded() -> bool:
            return others <= self.uploaded

        await self.federation.until(have_uploaded)
        for name in list(self.centres)[: self.GONE]:
            await self.federation.stop(name)
        self.left += 1


class Held(StudyAnswers):
    """A centre that, if it has a study, answers when others have left it."""

    study: LeavingStudy | None = None

    async def __call__(self, model: Any, info: Any) -> Any:
        answer = await super().__call__(model, info)
        if self.study is not None:
            await self.study.leave()
        return answer
