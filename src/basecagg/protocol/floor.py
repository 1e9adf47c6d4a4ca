"""A participant's floor: the least K, T, m and ε that it accepts, and how many versions it recomputes."""

from __future__ import annotations

from dataclasses import dataclass

from basecagg.errors import WrongEpoch
from basecagg.options import Consistency, Correctness, MemberOptions, Unit, Verify
from basecagg.parameters import ProtocolParameters, usual_per_version
from basecagg.privacy import Privacy

MOST_PARTS = 64 * 2**20
"""Bytes. Where the parts of a version take more, 'auto' recomputes a sample of the versions."""


@dataclass(frozen=True)
class LocalFloor:
    """The limits that a participant sets for itself. It refuses an epoch beyond them, whoever signed it."""

    buffer_size: int = 2
    max_colluders: int = 1
    consistency: Consistency = "honest-server"
    correctness: Correctness = "honest-holders"
    min_per_version: int | None = None
    """m. None: the usual one for this floor's consistency."""
    field_weights: bool = False
    """Whether a certified floor takes epochs whose sums have different weights in the field."""
    allow_clear: bool = False
    """Whether updates may be sent in clear, so that the server sees each of them. Nothing else of this floor
    but `max_epsilon` is looked at then: there is nothing to protect."""
    long_masks: bool = False
    """Whether masks have to be as long as the model: nothing but the holders' shares opens them then."""
    max_burns: int | None = None
    """The most sums of a version that may be given up for others: each may have been opened all the same.
    None: 1 if this floor's consistency is 'certified', else no limit."""
    verify: Verify = "never"
    """Which versions of the model are recomputed before they are used."""
    verify_fraction: float = MemberOptions.verify_fraction
    """p: the fraction of versions in a sample."""
    max_epsilon: float | None = None
    """The largest ε of all uploads ever. None: no limit, and epochs without noise are accepted."""
    max_delta: float = MemberOptions.max_delta
    """The largest δ that goes with it."""
    unit: Unit = "user"
    """'record' also allows epochs that hide single records only; training then has to clip each record."""

    def share_to_verify(self, parameters: ProtocolParameters) -> float:
        """The fraction of versions to recompute."""
        small = parameters.parts_bytes <= MOST_PARTS
        shares = {"always": 1.0, "sample": self.verify_fraction, "never": 0.0}
        return shares.get(self.verify, 1.0 if small else self.verify_fraction)

    def require(self, parameters: ProtocolParameters, max_burns: int = 0) -> None:
        """Refuse parameters that lie below this floor."""
        if not parameters.is_masked:
            self._require_clear_allowed()
            return
        if self.consistency == "certified" and parameters.consistency != "certified":
            raise WrongEpoch("my floor is consistency 'certified'")
        if self.consistency == "certified" and not parameters.once_per_version:
            raise WrongEpoch(
                "my floor is consistency 'certified': this epoch allows many sums of one version's updates"
            )
        if self.correctness == "agreed" and not parameters.agreed:
            raise WrongEpoch(
                "my floor is correctness 'agreed': T liars could write this epoch's sums"
            )
        if (
            self.consistency == "certified"
            and not self.field_weights
            and not parameters.weighs_alike
        ):
            raise WrongEpoch(
                "my floor is consistency 'certified': with weights in the field a sum tells more about me than"
                " the sum of numbers does (field_weights of my floor allows it)"
            )
        if self.long_masks and parameters.masks != "long":
            raise WrongEpoch("my floor is long masks: this epoch's grow from keys")
        silent = parameters.max_colluding_contributors
        least = self.min_per_version or usual_per_version(self.consistency, silent)
        for symbol, given, floor in (
            ("K", parameters.buffer_size, self.buffer_size),
            ("T", parameters.max_colluders, self.max_colluders),
            ("min_per_version m", parameters.least_per_version, least),
        ):
            if given < floor:
                raise WrongEpoch(f"{symbol} = {given} is below my floor {floor}")
        usual = 1 if self.consistency == "certified" else max_burns
        most = usual if self.max_burns is None else self.max_burns
        if max_burns > most:
            raise WrongEpoch(f"max_burns = {max_burns} is above my limit {most}")
        self._require_privacy(parameters.privacy)

    def _require_clear_allowed(self) -> None:
        if not self.allow_clear:
            raise WrongEpoch(
                "this epoch has protection 'none': the server would see every update of mine, and my floor does"
                " not allow that (allow_clear, on the command line --allow-clear)"
            )
        if self.max_epsilon is not None:
            raise WrongEpoch(
                f"my floor is ε = {self.max_epsilon:g}, and this epoch's updates are in clear"
            )

    def _require_privacy(self, privacy: Privacy | None) -> None:
        if self.unit == "user" and privacy is not None and privacy.unit != "user":
            raise WrongEpoch(
                "it hides single records, and only if training clips each of them (record_update): say so"
                " with unit 'record' in the floor"
            )
        if self.max_epsilon is None:
            return
        if privacy is None or privacy.epsilon is None:
            raise WrongEpoch(f"my floor is ε = {self.max_epsilon:g}, this epoch adds no noise")
        if privacy.epsilon > self.max_epsilon or privacy.delta > self.max_delta:
            raise WrongEpoch(
                f"it would spend ε = {privacy.epsilon:g} at δ = {privacy.delta:g}, my floor is ε ="
                f" {self.max_epsilon:g} at δ = {self.max_delta:g}"
            )
