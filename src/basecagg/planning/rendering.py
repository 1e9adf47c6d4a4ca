"""A plan as text for people (rich) and as a dictionary for JSON. Nothing is decided here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from basecagg.costs import (
    FLOAT,
    live_masks_each,
    phases,
    sent_bytes,
    share_bytes,
    wire_seconds,
)
from basecagg.maths.approved_rings import ERROR_VARIANCE
from basecagg.maths.robust_means import USUAL
from basecagg.parameters import ProtocolParameters
from basecagg.planning import budget
from basecagg.planning.calibration import STEPS
from basecagg.planning.planner import VARYING, Plan
from basecagg.printing import plain_table, sections
from basecagg.protocol.floor import MOST_PARTS

_CORRECT = {
    True: "U + T = {} answers that agree open a sum",
    False: "any U = {} answers open a sum",
}
_WHOSE = {
    "user": "of all that one user uploads; neighbours: it sends nothing",
    "record": "of one record in all uploads of its owner; neighbours: it is not there",
}
_WEIGHERS = {
    "own": "each contributor multiplies its update by 2^−t, t = ⌊log₂ 1/s(τ)⌋",
    "field": "server and holders multiply, as in the paper: sums tell more",
}
_HIDDEN = {"long": "as long as the model", "keys": "grow from keys of 2048 words"}
_COLLUDING = "contributors that may work with the server"
_CLIPPED = {"user": "an update", "record": "each record's part of an update"}
_CHANGES = {"user": "update", "record": "record"}


def render(plan: Plan) -> RenderableType:
    """Lay the plan out for a terminal of 80 columns or more."""
    bodies: dict[str, RenderableType] = {
        "Parameters": _parameters(plan),
        "Masks": Text(_masks(plan)),
        "Who meets in a sum": Text(_meeting(plan)),
        **_privacy_section(plan),
        **_bucket_section(plan),
        "No sum wraps around": _proof(plan),
        "Bytes of one user, for one update and one buffer": _traffic(plan),
        "Storage of one holder": _storage(plan),
        "Making a version again": _parts(plan),
        "Processor time on this machine, one thread, predicted": _cpu(plan),
        "How cost changes with U": _options(plan),
        "Consistency modes with these N, D, T and K": _modes(plan),
    }
    return sections(bodies)


def as_dict(plan: Plan) -> dict[str, Any]:
    """Give the same numbers for JSON."""
    p, network = plan.parameters, plan.wishes.network
    return {
        "parameters": asdict(p) | {"quorum": p.quorum, "share_size": p.share_size},
        "masks": {"chosen": p.masks, "reason": plan.why_masks},
        "notes": [_meeting(plan)],
        "wrap_around": {
            "largest_sum": p.largest_sum,
            "room": p.room_for_sum,
            "spare_bits": plan.spare_bits,
        },
        **_privacy_numbers(plan),
        **_bucket_numbers(plan),
        "beside_fedbuff": _beside_fedbuff(plan),
        "phases": [asdict(ph) | {"seconds": network.seconds(ph.up, ph.down)} for ph in plan.phases],
        "storage": {
            "contributors": plan.wishes.all_contributors,
            "masks_each": live_masks_each(p),
            "bytes_per_holder": plan.holder_bytes,
        },
        "cpu_seconds": {str(threshold): dict(times) for threshold, times in plan.cpu.items()},
        "options": [_option_as_dict(plan, option) for option in plan.options],
        "modes": {name: reason or "possible" for name, reason in plan.modes.items()},
    }


def _option_as_dict(plan: Plan, p: ProtocolParameters) -> dict[str, Any]:
    network, deal = plan.wishes.network, phases(p)[0]
    return {
        "deal_bytes": deal.up,
        "deal_seconds": network.seconds(deal.up, deal.down),
        "wire_seconds": wire_seconds(p, network),
        "holder_bytes": plan.storage_with(p),
        "recovery_threshold": p.recovery_threshold,
        "answers_needed": p.answers_needed,
        "chosen": p == plan.parameters,
    }


def _parameters(plan: Plan) -> Table:
    p = plan.parameters
    rows = [
        ("N", "num_holders", p.num_holders, "holders of shares"),
        ("D", "max_dropouts", p.max_dropouts, "holders that may be gone"),
        ("T", "max_colluders", p.max_colluders, "holders that learn nothing together"),
        ("U", "recovery_threshold", p.recovery_threshold, "right answers that determine a sum"),
        ("E", "liars", p.liars, "wrong answers that cannot stop a sum"),
        ("", "correctness", p.correctness, _CORRECT[p.agreed].format(p.answers_needed)),
        ("K", "buffer_size", p.buffer_size, "updates in one sum"),
        ("m", "min_per_version", p.min_per_version, "of each version in a sum, at least"),
        ("d", "model_size", f"{p.model_size:,}", "numbers in one update"),
        ("B", "clip", f"{p.clip:g}", "largest magnitude of a number"),
        ("c_l", "update_levels", _power(p.update_levels), "steps per unit of an update"),
        ("c_g", "weight_levels", _power(p.field_levels), "steps per unit of a weight in the field"),
        ("q", "modulus", p.field_size, "elements of the field"),
        ("s(τ)", "staleness", p.staleness, f"weight by staleness τ ≤ {p.max_staleness}"),
        ("", "weights", p.weights, _WEIGHERS[p.weights]),
        ("", "masks", p.masks, _HIDDEN[p.masks or "long"]),
        ("T_c", "max_colluding_contributors", p.max_colluding_contributors, _COLLUDING),
    ]
    return plain_table(rows=rows)


def _masks(plan: Plan) -> str:
    """Why such masks, what they do to a sum, and how wide the words are that they leave."""
    p = plan.parameters
    chosen = f"{p.masks}: {plan.why_masks}."
    if p.masks == "long":
        return f"{chosen} Sums are exact."
    steps = (ERROR_VARIANCE * p.buffer_size) ** 0.5
    words = f" Words of {p.word_bytes} bytes leave c_l = {_power(p.update_levels)}."
    if p.mechanism is not None and p.mechanism.variance:
        more = f"{ERROR_VARIANCE / p.mechanism.variance:.2%}"
        return f"{chosen} Errors, which the accounting ignores, add {more} to the noise's variance.{words}"
    sums = f" A number of a sum has an error of σ = 2.83·√K = {steps:.3g} steps,"
    return f"{chosen}{sums} {steps / p.update_levels / p.clip:.1g} of B.{words}"


def _beside_fedbuff(plan: Plan) -> dict[str, float]:
    """An upload with its shares, and the update that plain FedBuff sends: in float32, and as wide as words."""
    p = plan.parameters
    sent = sent_bytes(p)
    plain, narrow = FLOAT * p.model_size, p.word_bytes * p.model_size
    return {
        "upload_with_shares": sent,
        "fedbuff_float32": plain,
        "of_float32": sent / plain,
        "fedbuff_equal_width": narrow,
        "of_equal_width": sent / narrow,
    }


def _meeting(plan: Plan) -> str:
    """Which versions can meet in a sum."""
    m, k = plan.parameters.least_per_version, plan.parameters.buffer_size
    if m == 1:
        return (
            "Updates of any versions. Against a server that chooses who trains from which version this is"
            " little: it may show one user a version of its own (--min-per-version 3)."
        )
    if k < 2 * m:
        return (
            f"Only updates of one and the same version, because K = {k} < 2m = {2 * m}: who is slower than"
            f" the others is often left out. K = {2 * m} or more mixes versions."
        )
    return (
        f"Updates of {k // m} versions at most, at least m = {m} of each. What finds too few others of its"
        " version is given up; docs/results/beyond.md shows what that costs."
    )


def _privacy_section(plan: Plan) -> dict[str, RenderableType]:
    """The promise, the noise that it takes, and what the noise hides."""
    m = plan.parameters.mechanism
    if m is None:
        return {}
    v, rest = m.privacy, budget.noise_in_mean(m)
    clipped = f"to which {_CLIPPED[v.unit]} is clipped in the 2-norm, then weighed"
    more = f"{m.members / m.honest:.3g} times the variance of a trusted server's noise"
    rows = [
        ("ε, δ", f"{v.epsilon:g}, {v.delta:g}", _WHOSE[v.unit]),
        ("k_max", v.max_uses, f"uploads of one user; all fresh they cost ε = {m.epsilon:.4g}"),
        ("C", f"{v.clip_norm:g}", clipped),
        ("rate", f"{v.sampling_rate:g}", "the probability with which a record is in an upload"),
        ("M", v.max_records, "records in an upload at most; it is clipped to M·C"),
        ("z", f"{v.noise:g}", f"noise against what one {_CHANGES[v.unit]} changes"),
        ("T_c", m.silent, f"contributors without noise: {more}"),
        ("σ_i", f"{m.deviation:.4g} steps", "of one contributor's noise"),
        ("noise", f"{rest:.3g}", f"in an element of the mean (σ), {rest / v.clip_norm:.3g} of C"),
    ]
    if v.unit == "user":
        rows = [row for row in rows if row[0] not in ("rate", "M")]
    note = (
        f"All elements together, the noise in the mean is {rest * m.size**0.5:.3g} long. A sum longer than"
        f" honest members can make it is not applied; a lie of {budget.hidden_lie(m):.0f}·C may hide in"
        " the noise."
    )
    return {"Privacy": Group(plain_table(rows=rows), Text(note))}


def _privacy_numbers(plan: Plan) -> dict[str, Any]:
    m = plan.parameters.mechanism
    if m is None:
        return {}
    return {
        "privacy": {
            "epsilon": m.epsilon,
            "share_variance": m.variance,
            "noise_in_mean": budget.noise_in_mean(m),
            "variance_factor": m.members / m.honest,
            "hidden_lie": budget.hidden_lie(m),
        }
    }


def _bucket_section(plan: Plan) -> dict[str, RenderableType]:
    """What several sums for one version would withstand, and what they would take."""
    b, p, people = plan.buckets, plan.parameters, plan.wishes.all_contributors
    if b is None:
        return {}
    answer, one = _bytes(b.count * share_bytes(p)), _bytes(share_bytes(p))
    held = f"of {b.count} may be dirty; in {b.spoiled:.1%} of the versions more are"
    rows = [
        (
            "b",
            b.size,
            f"members of a bucket: a sum hides each among {b.size} instead of {p.buffer_size}",
        ),
        (
            "g",
            b.count,
            f"buckets; a version has K = g·b = {b.members} members, of {people} contributors",
        ),
        (
            "",
            f"{b.dirty:.0%}",
            f"of the buckets are dirty where {b.attackers:.1%} of the contributors attack",
        ),
        ("", b.withstands, held),
        (
            "",
            f"{b.most_attackers:.1%}",
            "of the contributors may attack before that is 5 % of the versions",
        ),
        ("", answer, f"of a holder's answer, with a row for each bucket; one sum takes {one}"),
        (
            "",
            f"× {b.noise_factor:.3g}",
            "in the noise that a budget of privacy asks for, in the mean (σ)",
        ),
    ]
    note = (
        f"The robust mean is {USUAL}. So far simulations only have buckets: basecagg run --set"
        f" buckets={b.count} --set buffer_size={b.members} --set cryptography=arithmetic"
    )
    return {"Several sums for one version": Group(plain_table(rows=rows), Text(note))}


def _bucket_numbers(plan: Plan) -> dict[str, Any]:
    b = plan.buckets
    if b is None:
        return {}
    derived = ("members", "withstands", "dirty", "spoiled", "most_attackers", "noise_factor")
    answer = b.count * share_bytes(plan.parameters)
    numbers = {name: getattr(b, name) for name in derived}
    return {"buckets": asdict(b) | numbers | {"robust_mean": USUAL, "answer_bytes": answer}}


def _proof(plan: Plan) -> Text:
    p, m = plan.parameters, plan.parameters.mechanism
    if m is None:
        more = 1 + p.error_reach
        sizes = f"{p.buffer_size}·{p.field_levels}·({p.update_levels}·{p.clip:g} + {more})"
        largest, chance = f"K·c_g·(c_l·B + {more}) = {sizes}", ""
        room = "(q − 3)/2".ljust(largest.index(" = "))
    else:
        noise = m.largest_sum - m.members * m.largest_element
        sizes = f"{m.members}·{m.largest_element:,} + {noise:,}"
        largest = f"K·(⌈c_l·M·C⌉ + 1) + σ_i·√(2K·ln(2d·2⁴⁰)) = {sizes}"
        room, chance = "(q − 3)/2", " (Chance: 2⁻⁴⁰.)"
    return Text(
        f"{largest} = {p.largest_sum:,}\n{room} = {p.room_for_sum:,}\n"
        f"The first is not larger than the second: {plan.spare_bits:.2f} bits to spare.{chance}"
    )


def _traffic(plan: Plan) -> RenderableType:
    network = plan.wishes.network
    speed = f"at {network.up:g}↑ {network.down:g}↓ Mb/s >"
    rows = [
        (p.name, _bytes(p.up), _bytes(p.down), _seconds(network.seconds(p.up, p.down)), p.what)
        for p in plan.phases
    ]
    beside = _beside_fedbuff(plan)
    note = (
        f"An upload with its shares has {_bytes(int(beside['upload_with_shares']))}. FedBuff in clear sends"
        f" {_bytes(int(beside['fedbuff_float32']))} in float32: it is {beside['of_float32']:.2f} of that, and"
        f" {beside['of_equal_width']:.2f} of an update in words of {plan.parameters.word_bytes} bytes."
    )
    table = plain_table("phase", "sends >", "receives >", speed, "", rows=rows)
    return Group(table, Text(note))


def _storage(plan: Plan) -> Text:
    p, contributors = plan.parameters, plan.wishes.all_contributors
    return Text(
        f"{_bytes(plan.holder_bytes)} at most: {contributors} contributors × {live_masks_each(p)} live masks"
        f" × {share_bytes(p):,} bytes of a share."
    )


def _parts(plan: Plan) -> Text:
    """The bytes that checking a version takes, and that the server keeps for it."""
    size = plan.parameters.parts_bytes
    habit = "every version" if size <= MOST_PARTS else "half of the versions, by a coin of its own"
    return Text(
        f"{_bytes(size)} at most for a verifier and a version: K uploads, the model before, N answers. The"
        f" server keeps so much for each of the last versions (serve --keep-versions). Unless told otherwise"
        f" an agent makes {habit} again (join --verify)."
    )


def _cpu(plan: Plan) -> RenderableType:
    if not plan.cpu:
        return Text("not measured")
    times = plan.cpu[plan.parameters.recovery_threshold]
    rows = [(step, _seconds(seconds), STEPS[step]) for step, seconds in times.items()]
    return plain_table("step", "time >", "", rows=rows)


def _options(plan: Plan) -> RenderableType:
    measured = [f"{step} >" for step in VARYING] if plan.cpu else []
    headers = ("", "U >", "deal >", "on the wire >", "storage >", "answers >", *measured)
    rows = [
        (
            "→" * (p == plan.parameters),
            p.recovery_threshold,
            _bytes(phases(p)[0].up),
            _seconds(wire_seconds(p, plan.wishes.network)),
            _bytes(plan.storage_with(p)),
            p.answers_needed,
            *(_seconds(plan.cpu[p.recovery_threshold][step]) for step in VARYING if plan.cpu),
        )
        for p in plan.options
    ]
    note = (
        "U is chosen for the least time on the wire, all phases together; of equals, the smallest."
        " A smaller U waits for fewer holders."
    )
    return Group(plain_table(*headers, rows=rows), Text(note))


def _modes(plan: Plan) -> Table:
    p = plan.parameters
    sure = p.num_holders - p.max_dropouts
    good = {
        "certified": f"possible: quorum {p.quorum} of the {sure} holders that are sure to be there",
        "honest-server": "possible: private as long as the server follows the protocol",
    }
    rows = [
        ("→" * (name == p.consistency), name, f"not possible: {why}" if why else good[name])
        for name, why in plan.modes.items()
    ]
    return plain_table(rows=rows)


def _power(number: int) -> str:
    bits = number.bit_length() - 1
    return f"2^{bits}" if number == 1 << bits else f"{number}"


def _bytes(number: int) -> str:
    return _in_units(number, {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1}) if number else "–"


def _seconds(number: float) -> str:
    return _in_units(number, {"h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6})


def _in_units(number: float, units: dict[str, float]) -> str:
    """Three digits in the largest unit that fits, or in the last: 1.5 MB. No exponent for large numbers."""
    unit, scale = next((each for each in units.items() if number >= each[1]), [*units.items()][-1])
    scaled = number / scale
    return f"{scaled:.3g} {unit}" if scaled < 999 else f"{scaled:,.0f} {unit}"
