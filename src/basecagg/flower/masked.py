"""Protection 'basecagg' on Flower: moves letters between the server and the members on the nodes.

Clients only reply, so everything is a visit: letters that wait for a node go with the next message to it, and
its reply brings its own. Verdicts and closings wait until a node is visited anyway, receipts until it trains;
shares and questions are a reason to visit.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter

import msgspec
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from basecagg.channels.wire import MAX_CONTROL_BYTES, limit_for, unpack
from basecagg.errors import ChannelError, DataError, LocalProtocolError, WrongEpoch
from basecagg.flower import visits
from basecagg.flower.contract import Contract, config_digest, layout_digest
from basecagg.flower.coordinator import LOG, OVER, Coordinator, Errand, Workload
from basecagg.flower.enrolment import OwnOperator, Roll
from basecagg.flower.node_view import NodeView
from basecagg.flower.settings import Settings
from basecagg.parties.epoch_server import EpochServer
from basecagg.planning.budget import noise_in_mean
from basecagg.privacy import Mechanism
from basecagg.protocol import messages
from basecagg.protocol.effects import Persist, Released, Send, Store
from basecagg.protocol.epoch import Agreement, first_link
from basecagg.protocol.short_letters import QUESTIONS

_URGENT = (messages.Parcel, *QUESTIONS)
_HOPELESS = 3
"""Failures in a row after which nobody waits for a node; when all fail so, the app must be at fault."""


class MaskedCoordinator(Coordinator):
    """The nodes as holders and contributors of one epoch."""

    def __init__(
        self,
        settings: Settings,
        workload: Workload,
        store: Store,
        operator: OwnOperator,
        chooser: random.Random,
    ) -> None:
        """Go on with the operator's epoch, or wait for the nodes to found one."""
        super().__init__(settings, workload, store)
        self.operator = operator
        initial = workload.initial
        self._chooser = chooser
        self._names: dict[str, NodeView] = {}
        self._roll = Roll(store)
        self._contract = _contract(settings, workload).to_bytes()
        behind = np.zeros(settings.contract.size, initial.dtype)
        self._initial = np.concatenate([initial, behind])
        self.agreement: Agreement | None = self.operator.agreement
        if self.agreement is not None:
            self._start(self.agreement)

    # --- founding ---------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Found the epoch if the nodes for it are there."""
        if self.server is None:
            self._found()
        super().tick(now)

    def _found(self) -> None:
        """Sign the epoch and start its server, once the holders have shown their keys."""
        met = [view for view in self.present if view.signing_key]
        chosen = _choose_holders(self.settings, self.present, self._chooser)
        if chosen is None:
            return
        training = len(met) if self.settings.holders_train else len(met) - len(chosen)
        self.settings = self.settings.fitting(training)
        holders = [(v.signing_key, v.holder_key) for v in chosen if v.holder_key is not None]
        parameters = self.settings.parameters(len(holders), self._initial.size)
        bound = Contract.digest_of(self._contract)
        self.agreement = self.operator.sign_epoch(
            parameters,
            holders,
            bound,
            first_link(self._initial),
            self.step_rule,
            max_burns=self.settings.max_burns,
        )
        p = parameters
        LOG.info(
            "epoch signed: N = %d holders, U = %d, T = %d, D = %d, K = %d, d = %d",
            *(p.num_holders, p.recovery_threshold, p.max_colluders, p.max_dropouts),
            *(p.buffer_size, p.model_size),
        )
        if p.mechanism is not None:
            self._tell_of_privacy(p.mechanism, training)
        self._start(self.agreement)

    def _tell_of_privacy(self, mechanism: Mechanism, contributors: int) -> None:
        promised, uses = mechanism.privacy, mechanism.privacy.max_uses
        LOG.info(
            "\t├──> Privacy: ε = %g at δ = %g for all that a node ever uploads (z = %g, T_c = %d)",
            *(promised.epsilon, promised.delta, promised.noise, mechanism.silent),
        )
        LOG.info(
            "\t└──> Noise: σ = %.3g in each number of the mean, C = %g; k_max = %d, so %d versions at most",
            *(noise_in_mean(mechanism), promised.clip_norm, uses),
            contributors * uses // mechanism.members,
        )

    def require_enough_nodes(self) -> None:
        """End also a run whose present version has had all the sums that its epoch allows."""
        super().require_enough_nodes()
        if self.server is None:
            return
        machine = self.server.machine
        if machine.is_opening or self.running.recovery.may_begin(machine.version):
            return
        most = self.signed.epoch.max_burns
        raise LocalProtocolError(
            f"version {machine.version}: every sum was given up, and the epoch allows {most + 1} in a version"
            f" (max_burns = {most}). See above which holders were silent or wrong; then start a new run, with"
            " another server_state"
        )

    def end(self) -> str:
        """Say so if too few nodes are left to fill a buffer, because the others have used up their budgets."""
        spent = [view for view in self.nodes.values() if view.spent]
        if not spent or self.running.machine.is_opening:
            return ""
        able, size = self.able, self.settings.chosen_buffer_size
        if able and len(able | self.waiting) >= size:
            return ""
        return (
            f"the privacy budget is used up on {len(spent)} of {len(self.nodes)} nodes, and fewer than K ="
            f" {size} are left"
        )

    def shortage(self) -> str:
        """What is missing. While a sum waits to be opened, this also reports too few holders."""
        found = super().shortage()
        if found or self.server is None or not self.server.machine.is_opening:
            return found
        views = [self._names.get(name) for name in self.signed.holder_names]
        here = sum(view is not None and view.present for view in views)
        needed = self.signed.holders_needed
        return f"{here} of {needed} holders to open a sum" if here < needed else ""

    def _start(self, agreement: Agreement) -> None:
        settings, parameters = self.settings, agreement.parameters
        size, here = parameters.model_size, self._initial.size
        bound = agreement.epoch.contract == Contract.digest_of(self._contract)
        for fits, problem in (
            (size == here, f"is for {size} numbers, this model and its metrics have {here}"),
            (bound, "binds other metrics, limits, configs or array names"),
            (settings.promises(parameters.privacy), "has another privacy"),
        ):
            if not fits:
                raise DataError(f"the stored epoch {problem}: choose another server_state")
        self.settings = replace(settings, buffer_size=parameters.buffer_size)
        self.server = EpochServer.of(
            agreement,
            self.operator.server,
            self._store,
            self._initial,
            post=self._post,
            tell=self._tell,
            retries=settings.retries,
        )
        # After a restart, holders are asked again as they are met.
        self.server.start()

    # --- visits -----------------------------------------------------------------------------------

    def errand(self, view: NodeView, now: float) -> Errand | None:
        """Visit a node to learn its keys, to bring letters that cannot wait, or to have it work."""
        if not view.signing_key:
            # As an evaluation if there will be evaluations: an app whose evaluation lacks the mod would answer
            # that in clear. Training has a visit of its own before a model is ever sent.
            return self._errand(view, "hello", "evaluate" if self.settings.evaluate else "train")
        if self.server is None:
            return None
        lacks = now - view.visited_at > self.settings.collect_interval and self._lacks_mask(view)
        if view.resume:
            waiting, view.letters = view.letters, []
            self.server.reconnect(view.name)
            view.letters = [*waiting, *(each for each in view.letters if each not in waiting)]
        collect = view.collect_at is not None and now >= view.collect_at
        urgent = any(isinstance(letter, _URGENT) for letter in view.letters)
        joined = self._has_joined(view)
        if not (urgent or collect or view.task or view.resume or not joined or lacks):
            return None
        view.visited_at = now
        return self._visit(view, joined)

    def _visit(self, view: NodeView, joined: bool) -> Errand:
        letters = view.take_letters()
        if not joined:
            credential = self.operator.admit(self.signed, view.name, view.signing_key)
            letters = [self.signed.epoch, credential, *letters]
        lesson = self.lesson(view.task) if view.task else {}
        if view.task:
            # The server's signed word on the model that a node is shown; for the first one the epoch vouches.
            release = self.running.kept.release(self.version)
            letters += [*view.take_receipts(), *([release] if release else [])]
            slots = np.ascontiguousarray(self.running.machine.model[self.layout.size :])
            lesson[visits.METRICS] = ConfigRecord({"charge": self._contract})
            lesson[visits.SLOTS] = ArrayRecord({"slots": Array(slots)})
            if view.task == "train":
                self.running.begun(view.name, self.version)
        errand = self._errand(view, "visit", view.task or "train", letters, lesson)
        if view.task:
            view.doing, view.task = view.task, ""
        view.resume = False
        view.collect_at = None
        return errand

    def _errand(
        self,
        view: NodeView,
        stage: visits.Stage,
        kind: str,
        letters: Sequence[messages.Message] = (),
        lesson: Mapping[str, ArrayRecord | ConfigRecord] | None = None,
    ) -> Errand:
        """A message to a node: the order, letters of the protocol, and what the app gets to see."""
        order = visits.Order(
            stage=stage,
            federation=self.operator.federation,
            operator_key=self.operator.operator_key,
            version=self.version,
            resume=view.resume,
            task=view.task,
            detach=self.settings.training == "detached",
            patience=float(self._patience),
            arrays_key=self.settings.arrayrecord_key,
            config_key=self.settings.configrecord_key,
        )
        content = RecordDict({visits.ORDER: visits.write(order), **(lesson or {})})
        if letters:
            content[visits.LETTERS] = visits.pack_letters(letters)
        return view.node_id, content, kind

    def farewell(self) -> list[Errand]:
        """Tell the nodes that the epoch is over, signed: they delete their keys and shares."""
        if not self.settings.erase_state or self.server is None:
            return []
        self._store.commit([Persist(OVER, "", b"")])
        machine = self.running.machine
        end = self.operator.end(machine.version, machine.head)
        known = [view for view in self.present if view.signing_key]
        return [self._errand(view, "goodbye", "train", [end]) for view in known]

    # --- masks ------------------------------------------------------------------------------------

    def may_train(self, view: NodeView) -> bool:
        """Whether it has a mask that enough holders have confirmed, and is not kept for answering."""
        if not (self.contributes(view) and self._has_joined(view) and self._has_mask(view)):
            return False
        # A member of the sum that is being opened waits for the version that it makes.
        return self.running.recovery.may_contribute(view.name, self.running.machine.history)

    def contributes(self, view: NodeView) -> bool:
        """Whether this node trains; otherwise it is kept for answering, or has used up its budget."""
        holds = self.agreement is not None and self.agreement.holder_index(view.name) is not None
        return not view.spent and (self.settings.holders_train or not holds)

    def _has_joined(self, view: NodeView) -> bool:
        return self.agreement is not None and view.epoch == self.agreement.id.hex()

    @property
    def nodes_needed(self) -> int:
        """The holders have to be there, and as many nodes as `min_available_nodes` says."""
        return max(2, self.settings.min_available_nodes, self.settings.committee_size or 0)

    @property
    def signed(self) -> Agreement:
        """The epoch, once it is signed."""
        assert self.agreement is not None
        return self.agreement

    def _has_mask(self, view: NodeView) -> bool:
        return view.has_mask(self.signed.holders_needed)

    def _lacks_mask(self, view: NodeView) -> bool:
        """Whether it will never have a mask unless it is visited.

        All of them are used up or expired: it deals one on every visit. Or one is confirmed, but receipts were
        lost with a server that restarted: then it has to ask for them again.
        """
        idle = not view.trains and self.contributes(view) and self._has_joined(view)
        if not idle or self._has_mask(view):
            return False
        mailroom = self.running.recovery.mailroom
        found = [mailroom.find(name) for name in view.dealt]
        view.dealt = {mask.name for mask in found if mask is not None and mask.state == "dealt"}
        needed = self.signed.holders_needed
        confirmed = any(len(mailroom.holders_of(name)) >= needed for name in view.dealt)
        view.resume = view.resume or confirmed
        return confirmed or not view.dealt

    # --- letters ----------------------------------------------------------------------------------

    def _post(self, sends: Sequence[Send]) -> None:
        """Queue letters for nodes. For a node that is away they are lost, and made again when it comes back."""
        for send in sends:
            view, letter = self._names.get(send.recipient), send.message
            if view is None or not view.present:
                continue
            if isinstance(letter, messages.Receipt):
                view.put_receipt(letter)
            elif not isinstance(letter, QUESTIONS) or letter not in view.letters:
                view.letters.append(letter)

    def hear(self, view: NodeView, content: RecordDict, now: float) -> None:
        """Take a node's report and letters."""
        with visits.reading():
            report, frames = visits.read_report(content), visits.unpack_letters(content)
        self._recognise(view, report)
        if report.declined:
            raise WrongEpoch(f"it declined the epoch ({report.declined}); its own log says why")
        view.note_activity(report, now, self.settings.collect_interval, self._patience)
        for frame in frames if self.server is not None else ():
            self._open(view, frame)

    def _recognise(self, view: NodeView, report: visits.NodeReport) -> None:
        """Check who this is: name and key are bound at its first hello, and stay."""
        if not view.signing_key:
            present = {each.node_id for each in self.present}
            announced = self._roll.bind(view.node_id, report, present)
            self.operator.require_fit(report.signing_key, announced)
            view.holder_key = announced
            view.name, view.signing_key = report.name, report.signing_key
            self._names[view.name] = view
            view.resume = bool(report.epoch)
        elif report.name:
            self._roll.require(view.node_id, report.name)
        else:  # it has lost its folder, and with it its keys: it may show new ones under its old name
            view.signing_key = b""
        if report.spent and not view.spent:
            LOG.info("node %d: its privacy budget is used up", view.node_id)
        view.epoch, view.ready, view.spent = report.epoch, report.ready, report.spent

    def _open(self, view: NodeView, frame: bytes) -> None:
        try:
            message = unpack(frame, self._limit)
        except ChannelError as error:
            LOG.warning("node %d: %s", view.node_id, visits.bounded(str(error)))
            return
        if isinstance(message, messages.Refusal):
            said = visits.bounded(message.reason), visits.bounded(message.code)
            LOG.warning("node %d refused: %s (%s)", view.node_id, *said)
        elif (refusal := self.running.receive(view.name, message)) is not None:
            text = visits.bounded(str(refusal))
            LOG.info("%s of node %d refused: %s", type(message).__name__, view.node_id, text)
        elif isinstance(message, messages.Shipment):
            view.dealt.update(message.dealing.masks)

    @cached_property
    def _limit(self) -> int:
        kinds = messages.Shipment, messages.Upload, messages.Contribution
        return max(MAX_CONTROL_BYTES, *(limit_for(kind, self.signed.parameters) for kind in kinds))

    def metrics(self, released: Released) -> tuple[MetricRecord | None, MetricRecord | None]:
        """The averages that came out of the sum itself; and warn of what went wrong with the sum."""
        holders = [self.signed.holder_names[each] for each in released.inconsistent_holders]
        if holders:
            LOG.warning(
                "version %d: answers that disagree with the others were corrected, of %s",
                *(released.version + 1, ", ".join(holders)),
            )
        if not released.applied:
            LOG.warning(
                "version %d: its sum is longer than honest members can make it, and not applied; members: %s",
                *(released.version + 1, ", ".join(name.contributor for name in released.members)),
            )
        contract, clip = self.settings.contract, self.settings.clip
        means = released.weighted_sum[self.layout.size :] / sum(released.weights)
        trained, evaluated, cut = contract.decode(means, clip)
        if cut > 0:
            LOG.warning(
                "version %d: %.0f %% of the buffer had numbers beyond the clip B = %g or a metric's limit, and"
                " they were cut: raise clip or the limits",
                *(released.version + 1, 100 * cut, clip),
            )
        return trained, evaluated


def _contract(settings: Settings, workload: Workload) -> Contract:
    """The contract of this run: metrics, and digests of what goes to a node beside the model's numbers."""
    configs = {"train": workload.train_config, "evaluate": workload.evaluate_config}
    layout = layout_digest(workload.layout, settings.arrayrecord_key, settings.configrecord_key)
    bound = {
        task: config_digest(config)
        for task, config in configs.items()
        if task not in workload.changing
    }
    return msgspec.structs.replace(settings.contract, layout=layout, configs=bound)


def _choose_holders(
    settings: Settings, present: Sequence[NodeView], chooser: random.Random
) -> list[NodeView] | None:
    """The holders of an epoch, in the order of their names; None while too few nodes have shown their keys.

    A run in which no node can show its keys ends.
    """
    if present and all(not v.signing_key and v.failures >= _HOPELESS for v in present):
        raise LocalProtocolError(
            "no node can take part. Has every node ClientApp(mods=[basecagg_mod]), for training and for"
            " evaluation, before any mod that looks at arrays or configs? One says:"
            f" {present[0].problem}"
        )
    wanted, least = settings.holders, settings.min_available_nodes
    name = attrgetter("name")
    met = sorted((view for view in present if view.signing_key), key=name)
    if wanted is None:
        awaited = any(view.failures < _HOPELESS for view in present if not view.signing_key)
        return met if len(met) >= max(2, least) and not awaited else None
    if isinstance(wanted, int):
        enough = len(met) >= max(wanted, least)
        return sorted(chooser.sample(met, wanted), key=name) if enough else None
    named = [view for view in met if view.node_id in set(wanted)]
    return named if len(named) == len(wanted) else None
