"""A node of the federation between two messages: its keys, its epoch, and what it has not sent yet."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self

from basecagg.channels.identity import Identity
from basecagg.channels.sealing import SealingSecret
from basecagg.channels.wire import MAX_CONTROL_BYTES, pack, unpack
from basecagg.errors import BadSignature, LocalProtocolError
from basecagg.flower import detached
from basecagg.flower.node_folder import NodeFolder
from basecagg.flower.seat import Seat, agree, parse
from basecagg.flower.visits import Report
from basecagg.protocol.effects import Forget, Persist
from basecagg.protocol.epoch import Epoch
from basecagg.protocol.global_model import Model
from basecagg.protocol.messages import Credential, Message, Suite
from basecagg.protocol.records import Record, write
from basecagg.protocol.records import parse as parse_record

_SUITE: Suite = "x25519"


class Job(Record):
    """Training that was begun: from which model."""

    version: int
    model_hash: bytes
    began: float
    """When, by this machine's clock."""


class Evaluation(Record):
    """Metrics of the model that this node is about to train; they leave inside its next update only."""

    values: dict[str, float]


class Node:
    """An open node: nobody else can open it until it is closed, so no machine runs twice."""

    def __init__(self, folder: NodeFolder) -> None:
        """Open the node's own records, and its machines if it has joined an epoch."""
        self.folder = folder
        self._records = folder.open_store("node")
        self._seat: Seat | None = None

    def __enter__(self) -> Self:
        """Nothing to do: the node is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all stores."""
        if self._seat is not None:
            self._seat.close()
        self._records.close()

    # --- joining ----------------------------------------------------------------------------------

    def introduce(self, name: str, operator_key: bytes) -> Report:
        """Make keys when first asked, pin the operator's key, and show the public halves."""
        if self._records.read("name", "") is None:
            self._records.commit(
                [
                    Persist("name", "", name.encode()),
                    Persist("operator", "", operator_key),
                    Persist("key", "signing", Identity.create().secret_bytes()),
                    Persist("key", "sealing", SealingSecret.create(_SUITE).secret_bytes()),
                ]
            )
        if self._read("operator") != operator_key:
            raise BadSignature(
                "this federation has another operator than the one that this node pinned"
            )
        signing, sealing = self._identity().public_key, self._sealing().public_key
        return replace(self.report(), signing_key=signing, sealing_key=sealing)

    def report(self) -> Report:
        """Who this is, and how it stands."""
        name = self._records.read("name", "")
        if name is None:
            return Report()
        epoch = self._seat.agreement.id.hex() if self._seat else ""
        ready = self._seat.ready if self._seat else 0
        return Report(name=name.decode(), epoch=epoch, ready=ready)

    def sit_down(self, *, resume: bool = False) -> list[Message]:
        """Take up the machines if this node has joined an epoch; what it returns is to be sent."""
        frame, credential = self._records.read("epoch", ""), self._records.read("credential", "")
        if frame is None or credential is None:
            return []
        agreement = agree(frame, self._read("operator"))
        admitted = unpack(credential, MAX_CONTROL_BYTES)
        assert isinstance(admitted, Credential)
        self._seat = Seat(agreement, admitted, self._identity(), self._sealing(), self.folder)
        return self._seat.start(resume=resume)

    def _join(self, messages: Sequence[Message]) -> None:
        """An epoch and this node's credential come as the first letters, until it says that it has them."""
        joined = [each for each in messages if isinstance(each, Epoch | Credential)]
        kinds = {Epoch: "epoch", Credential: "credential"}
        if joined and self._seat is None and self._records.read("name", "") is not None:
            self._records.commit([Persist(kinds[type(each)], "", pack(each)) for each in joined])
            self.sit_down()

    # --- letters ----------------------------------------------------------------------------------

    def take(self, frames: Sequence[bytes]) -> list[Message]:
        """Deal with the letters of a visit."""
        messages = [message for frame in frames if (message := parse(frame)) is not None]
        self._join(messages)
        if self._seat is None:
            return []
        return self._seat.take([m for m in messages if not isinstance(m, Epoch | Credential)])

    def deal(self, version: int) -> list[Message]:
        """Have a mask ready for the next update."""
        return self._seat.deal(version) if self._seat else []

    # --- training ---------------------------------------------------------------------------------

    @property
    def may_train(self) -> bool:
        """Whether a mask is ready."""
        return self._seat is not None and self._seat.ready > 0

    @property
    def seat(self) -> Seat:
        """The machines."""
        if self._seat is None:
            raise LocalProtocolError("this node has not joined an epoch yet")
        return self._seat

    def submit(self, update: Model, job: Job) -> list[Message]:
        """Mask an update and forget the evaluation that went with it."""
        messages = self.seat.submit(update, job.version, job.model_hash)
        self._records.commit([Forget("evaluation", ""), Forget("job", "")])
        return messages

    def note_job(self, job: Job) -> None:
        """Training in a process of its own begins."""
        self._records.commit([write("job", "", job)])

    @property
    def job(self) -> Job | None:
        """The training that was begun in a process of its own and has not been collected."""
        stored = self._records.read("job", "")
        return parse_record(stored, Job) if stored else None

    def drop_job(self) -> None:
        """It is over, one way or the other."""
        detached.stop(self.folder.path)
        detached.clear(self.folder.path)
        self._records.commit([Forget("job", "")])

    def note_evaluation(self, metrics: Mapping[str, object]) -> None:
        """Keep the metrics of an evaluation for the next update."""
        numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float)}
        self._records.commit([write("evaluation", "", Evaluation(values=numbers))])

    @property
    def evaluation(self) -> Mapping[str, float] | None:
        """The metrics that wait for the next update."""
        stored = self._records.read("evaluation", "")
        return parse_record(stored, Evaluation).values if stored else None

    # --- the end ----------------------------------------------------------------------------------

    def erase(self) -> None:
        """The federation is over: keys, masks and shares are deleted, and the folder with them."""
        detached.stop(self.folder.path)
        if self._seat is not None:
            self._seat.erase()
        self._records.erase()
        shutil.rmtree(self.folder.path, ignore_errors=True)
        for folder in self.folder.temporary:
            with suppress(OSError):  # others may have something in it
                folder.rmdir()

    # --- records ----------------------------------------------------------------------------------

    def _read(self, kind: str, key: str = "") -> bytes:
        value = self._records.read(kind, key)
        if value is None:
            raise LocalProtocolError(f"this node has no {kind}: it has to be introduced first")
        return value

    def _identity(self) -> Identity:
        return Identity.from_secret(self._read("key", "signing"))

    def _sealing(self) -> SealingSecret:
        return SealingSecret(_SUITE, self._read("key", "sealing"))
