"""The audit: honest runs teach sums and nothing else, and every way to learn more is found."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from oracle_audit import Oracle
from recorded import (
    PIECES,
    K,
    N,
    T,
    U,
    answers,
    epoch_line,
    opened_sum,
    request,
    shares,
    texts,
    upload,
)

from basecagg.auditing import knowledge
from basecagg.auditing.leakage import Report, audit
from basecagg.auditing.transcript import (
    AnyLine,
    EpochLine,
    PlainLine,
    RequestLine,
    RequestMember,
    Transcript,
    UploadLine,
)
from basecagg.cli import main
from basecagg.errors import DataError
from basecagg.maths.accounting import epsilon_of
from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.planning.budget import promise
from basecagg.privacy import Mechanism, Privacy
from basecagg.storage import disk
from reproduction.bench import Federation

MASKS = ("ann/1", "bob/1", "cyd/1")
WEIGHTS = dict(zip(MASKS, (3, 5, 8), strict=True))
OTHER_WEIGHTS = dict(zip(MASKS, (3, 5, 7), strict=True))
COLLUDERS = range(T)
HONEST = range(T, N)


def judge(*lines: AnyLine, epoch: EpochLine | None = None, **options: object) -> Report:
    return audit(Transcript([epoch or epoch_line(), *lines]), **options)


def the_group(report: Report):
    assert len(report.groups) == 1
    return report.groups[0]


# --- the algebra, against a second implementation ---------------------------------------------


@st.composite
def views(draw: st.DrawFn) -> Transcript:
    """Anything that a server could have seen, honest or not: small enough for the oracle."""
    modulus = draw(st.sampled_from([7, 101, 2**32 - 5]))
    holders = draw(st.integers(2, 5))
    colluders = draw(st.integers(0, holders - 1))
    threshold = draw(st.integers(colluders + 1, holders))
    point = st.integers(0, min(modulus, 9) - 1)
    epoch = epoch_line(
        num_holders=holders,
        recovery_threshold=threshold,
        max_colluders=colluders,
        buffer_size=2,
        modulus=modulus,
        points=tuple(draw(st.lists(point, min_size=holders, max_size=holders))),
    )
    masks = [f"user-{i}/1" for i in range(draw(st.integers(1, 4)))]
    some_holders = st.sets(st.integers(0, holders - 1))
    lines: list[AnyLine] = [epoch]
    for mask in masks:
        updates = draw(st.sampled_from([0, 1, 1, 1, 2]))
        lines += [upload(mask, f"update-{i}") for i in range(updates)]
        lines += shares(draw(some_holders) if draw(st.booleans()) else (), [mask])
    for number in range(draw(st.integers(0, 3))):
        chosen = draw(st.lists(st.sampled_from(masks), min_size=1, unique=True))
        weight = st.integers(0, min(modulus, 4) - 1)
        members = tuple(
            RequestMember(mask, f"update-{draw(st.integers(0, 1))}", draw(weight))
            for mask in chosen
        )
        lines.append(RequestLine(f"request-{number}", number, members))
        lines += answers(f"request-{number}", draw(some_holders))
    return Transcript(lines)


@given(views())
def test_every_dimension_is_the_oracles(transcript: Transcript) -> None:
    report, oracle = audit(transcript), Oracle(transcript)
    requests = transcript.requests
    for found in report.sums:
        assert found.learned == oracle.of_sum(requests[found.digest])
    legitimate = [requests[found.digest] for found in report.sums if found.legitimate]
    assert sum(group.leaked for group in report.groups) == oracle.beyond(legitimate)
    exposed = {(e.mask, e.update): e.learned for group in report.groups for e in group.exposed}
    every = {(mask, update) for mask, updates in transcript.uploads.items() for update in updates}
    assert exposed == {key: learned for key in every if (learned := oracle.of_update(*key))}


# --- honest -----------------------------------------------------------------------------------


@pytest.mark.parametrize("colluders", [range(0), COLLUDERS, range(N - T, N)])
@pytest.mark.parametrize("holders", [range(N), range(U), range(N - U, N)])
def test_an_opened_sum_is_one_sum(colluders: range, holders: range) -> None:
    report = judge(*opened_sum(0, WEIGHTS, holders), *shares(colluders, MASKS))
    (found,) = report.sums
    assert report.only_sums
    assert found.legitimate
    assert found.outcome == "opened"
    assert found.learned == PIECES
    assert the_group(report).causes == ()


@pytest.mark.parametrize("count", range(U + 1))
def test_too_few_answers_teach_a_part_of_the_sum(count: int) -> None:
    """n answers alone know n evaluations of U unknowns, T of them noise; colluders make up for the noise."""
    asked = [*map(upload, MASKS), request("r", WEIGHTS), *answers("r", HONEST[:count])]
    alone, helped = judge(*asked), judge(*asked, *shares(COLLUDERS, MASKS))
    assert alone.only_sums
    assert helped.only_sums
    assert [found.learned for found in alone.sums] == [max(0, count - T)] * (count > 0)
    assert [found.learned for found in helped.sums] == [min(count, PIECES)] * (count > 0)
    assert alone.rounds.equations == (count > T)


def test_uploads_and_colluders_alone_teach_nothing() -> None:
    report = judge(*map(upload, MASKS), *shares(COLLUDERS, MASKS))
    assert report.only_sums
    assert report.groups == ()


def test_sums_of_different_masks_are_judged_apart() -> None:
    second = {f"{name}/2": 1 for name in ("ann", "bob", "cyd")}
    report = judge(*opened_sum(0, WEIGHTS), *opened_sum(1, second))
    assert [group.masks for group in report.groups] == [tuple(WEIGHTS), tuple(second)]
    assert report.only_sums


def test_the_papers_size() -> None:
    epoch = epoch_line(
        num_holders=100,
        recovery_threshold=70,
        max_colluders=8,
        buffer_size=10,
        points=tuple(range(1, 101)),
    )
    weights = {f"user-{i}/1": i + 1 for i in range(10)}
    lines = [*opened_sum(0, weights, range(100)), *shares(range(8), weights)]
    assert judge(*lines, epoch=epoch).only_sums
    conflict = [request("other", weights | {"user-3/1": 1}, 1), *answers("other", [50])]
    assert the_group(judge(*lines, *conflict, epoch=epoch)).leaked == 1


def test_what_is_too_large_to_solve_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(knowledge, "_LARGEST_MATRIX", 100)
    with pytest.raises(DataError, match="3 masks are tied together by requests: 7 equations in 15"):
        judge(*opened_sum(0, WEIGHTS))


# --- negative controls ------------------------------------------------------------------------


@pytest.mark.parametrize("conflicting", range(1, N - T + 1))
def test_with_colluders_every_conflicting_answer_leaks_one_dimension(conflicting: int) -> None:
    """The code is a ramp scheme: its T rows of noise are used up by the T colluders."""
    liars = HONEST[:conflicting]
    lines = [*opened_sum(0, WEIGHTS), request("other", OTHER_WEIGHTS, 1), *answers("other", liars)]
    group = the_group(judge(*lines, *shares(COLLUDERS, MASKS)))
    assert group.leaked == min(conflicting, PIECES)
    assert "ask for different sums over 3 masks (ann/1, bob/1, cyd/1)" in group.causes[0]
    assert str(liars[0]) in group.causes[0]


def test_without_colluders_noise_still_hides_the_first_conflicting_answers() -> None:
    """A broken rule is named even if nothing leaked yet."""
    base = [*opened_sum(0, WEIGHTS), request("other", OTHER_WEIGHTS, 1)]
    leaked = {
        count: the_group(judge(*base, *answers("other", HONEST[:count]))).leaked
        for count in range(1, 5)
    }
    assert leaked == {count: max(0, count - T) for count in range(1, 5)}
    quiet = judge(*base, *answers("other", HONEST[:1]))
    assert quiet.only_sums
    assert quiet.groups[0].causes


def test_two_sums_over_the_same_masks_determine_an_update() -> None:
    lines = [
        *opened_sum(0, WEIGHTS),
        request("other", OTHER_WEIGHTS, 1),
        *answers("other", range(U)),
    ]
    report = judge(*lines)
    assert not report.only_sums
    (exposure,) = the_group(report).exposed
    assert (exposure.contributor, exposure.mask, exposure.learned) == ("cyd", "cyd/1", PIECES)
    assert the_group(report).leaked == PIECES
    assert report.rounds.determined == ("cyd",)


def test_the_same_sum_asked_for_twice_teaches_nothing_new() -> None:
    doubled = {mask: 2 * weight for mask, weight in WEIGHTS.items()}
    lines = [*opened_sum(0, WEIGHTS), request("again", doubled, 1), *answers("again", range(N))]
    assert judge(*lines, *shares(COLLUDERS, MASKS)).only_sums


def test_overlapping_buffers_are_judged_together() -> None:
    """Two sums that share a mask: one of them has to go, and its answers are leaks."""
    shifted = dict(zip(("bob/1", "cyd/1", "dee/1"), (5, 8, 1), strict=True))
    report = judge(*opened_sum(0, WEIGHTS), *opened_sum(1, shifted))
    group = the_group(report)
    assert [found.legitimate for found in group.sums] == [True, False]
    assert group.leaked == PIECES
    assert group.exposed == ()
    assert report.rounds.equations == 2


def test_of_two_sums_the_opened_one_is_legitimate() -> None:
    shifted = dict(zip(("bob/1", "cyd/1", "dee/1"), (5, 8, 1), strict=True))
    earlier = [*map(upload, shifted), request("burned", shifted, 0), *answers("burned", range(N))]
    report = judge(*earlier, *opened_sum(1, WEIGHTS, range(U)))
    assert [(found.version, found.legitimate) for found in report.sums] == [(0, False), (1, True)]


def test_a_reused_mask_is_found() -> None:
    report = judge(*opened_sum(0, WEIGHTS), upload("bob/1", "second"))
    group = the_group(report)
    assert group.leaked == PIECES
    assert group.causes == ("mask bob/1 hides 2 updates: their difference is in the open",)


def test_either_update_under_a_reused_mask_may_be_the_one_in_the_sum() -> None:
    """The holders' shares are of the mask, so both sums are known."""
    named = [RequestMember(mask, f"update-{mask}", weight) for mask, weight in WEIGHTS.items()]
    second = RequestLine("r", 0, (named[0], RequestMember("bob/1", "second", 5), named[2]))
    lines = [*map(upload, MASKS), upload("bob/1", "second"), second, *answers("r", range(U))]
    group = the_group(judge(*lines))
    assert [(found.learned, found.legitimate) for found in group.sums] == [(PIECES, True)]
    assert group.leaked == PIECES


def test_a_reused_mask_is_found_before_any_sum() -> None:
    report = judge(upload("bob/1"), upload("bob/1", "second"))
    assert not report.only_sums
    assert the_group(report).leaked == PIECES


def test_the_holder_of_the_point_zero_owns_a_piece_of_every_update() -> None:
    epoch = epoch_line(points=(0, *range(2, N + 1)))
    report = judge(*opened_sum(0, WEIGHTS), *shares([0], MASKS), epoch=epoch)
    group = the_group(report)
    assert [each.learned for each in group.exposed] == [1] * K
    assert group.leaked == K - 1  # one combination of the K pieces is in the sum already
    assert group.causes == (
        "holder 0 has the evaluation point 0: its share is a piece of the mask",
    )


@pytest.mark.parametrize("extra", [1, 2, 3])
def test_one_colluder_too_many_leaks_of_every_update(extra: int) -> None:
    report = judge(*opened_sum(0, WEIGHTS), *shares(range(T + extra), MASKS))
    group = the_group(report)
    assert [each.learned for each in group.exposed] == [extra] * K
    assert group.leaked == extra * (K - 1)
    assert "3 masks (ann/1, bob/1, cyd/1) withstand T = 2" in group.causes[0]


def test_colluders_can_be_supposed() -> None:
    transcript = Transcript([epoch_line(), *opened_sum(0, WEIGHTS)])
    assert audit(transcript, colluders=range(T)).only_sums
    assert not audit(transcript, colluders=range(T + 1)).only_sums
    with pytest.raises(DataError, match="no holder 7"):
        audit(transcript, colluders=[N])


def test_a_sum_of_too_few_is_no_legitimate_sum() -> None:
    report = judge(*opened_sum(0, {"ann/1": 3, "bob/1": 5}))
    assert the_group(report).leaked == PIECES
    assert "has 2 contributors with an update in 2 members; K = 3" in the_group(report).causes[0]


def test_a_weight_of_zero_leaves_a_sum_of_fewer() -> None:
    assert the_group(judge(*opened_sum(0, WEIGHTS | {"bob/1": 0}))).leaked == PIECES


def test_a_contributor_twice_is_no_legitimate_sum() -> None:
    report = judge(*opened_sum(0, {"ann/1": 3, "ann/2": 5, "bob/1": 1}))
    assert the_group(report).leaked == PIECES


def test_a_member_without_an_update_leaves_a_sum_of_fewer() -> None:
    """Its mask still hides the others. It is named, for T + 1 of its shares would be enough to unmask them."""
    lines = [upload("ann/1"), upload("bob/1"), request("r", WEIGHTS), *answers("r", range(N))]
    assert judge(*lines).only_sums
    assert the_group(judge(*lines)).causes
    assert the_group(judge(*lines, *shares(range(U), ["cyd/1"]))).leaked == PIECES


def test_insiders_that_surround_an_update_know_it() -> None:
    transcript = Transcript([epoch_line(), *opened_sum(0, WEIGHTS)])
    assert audit(transcript, insiders=["ann"]).only_sums
    assert audit(transcript, insiders=["ann"]).rounds.smallest == ("bob", "cyd")
    report = audit(transcript, insiders=["ann", "cyd"])
    assert not report.only_sums
    assert [(e.contributor, e.learned) for e in the_group(report).exposed] == [("bob", PIECES)]
    assert "all its contributors but bob are insiders" in the_group(report).causes[0]
    waiting = Transcript([epoch_line(), upload("ann/1"), *shares(COLLUDERS, ["ann/1"])])
    assert audit(waiting, insiders=["ann"]).only_sums
    with pytest.raises(DataError, match="no update of zoe"):
        audit(transcript, insiders=["zoe"])


# --- over all rounds --------------------------------------------------------------------------


def constant_round(version: int, names: str) -> list[AnyLine]:
    return opened_sum(version, {f"{name}/{version}": 1 for name in names})


def test_a_shift_by_one_reveals_the_difference_of_two() -> None:
    report = judge(*constant_round(0, "abc"), *constant_round(1, "bcd"))
    assert report.only_sums  # each sum is fine; together they say a − d
    assert report.rounds.rank == 2
    assert report.rounds.determined == ()
    assert report.rounds.smallest == ("a", "d")


def test_enough_overlapping_rounds_determine_everybody() -> None:
    rounds = ("abc", "abd", "acd", "bcd")
    report = judge(*(line for v, names in enumerate(rounds) for line in constant_round(v, names)))
    assert report.rounds.rank == 4
    assert report.rounds.determined == ("a", "b", "c", "d")


def test_the_same_group_again_and_again_reveals_its_sum_only() -> None:
    report = judge(*(line for v in range(5) for line in constant_round(v, "abc")))
    assert report.rounds.rank == 1
    assert report.rounds.smallest == ("a", "b", "c")


def test_weights_that_change_within_a_group_reveal_more_than_its_sum() -> None:
    """Why cohorts need equal weights: stochastic rounding alone would undo them."""
    first = opened_sum(0, {"a/0": 5, "b/0": 5, "c/0": 5})
    second = opened_sum(1, {"a/1": 5, "b/1": 6, "c/1": 5})
    assert judge(*first, *second).rounds.determined == ("b",)


def test_cohorts_are_offered_for_every_divisor() -> None:
    epoch = epoch_line(buffer_size=4, max_colluders=1)
    rounds = ("abcd", "efgh", "acei")
    report = judge(
        *(line for v, names in enumerate(rounds) for line in constant_round(v, names)), epoch=epoch
    )
    pairs, fours = report.cohorts
    assert [(c.size, len(c.groups), c.most_rank, c.suggested) for c in report.cohorts] == [
        (2, 4, 3, False),
        (4, 2, 2, True),
    ]
    assert set(fours.groups[0][:3]) == {"a", "c", "e"}  # the most active ones together
    assert len(pairs.left_over) == 1


@given(st.lists(st.permutations(range(4)), min_size=1, max_size=12), st.sampled_from([1, 2, 4]))
def test_cohorts_keep_what_they_promise(orders: list[list[int]], groups_in_a_sum: int) -> None:
    """Whatever groups meet and however groups are weighed, nothing smaller than a group follows."""
    lines, members = [], [("a", "b"), ("c", "d"), ("e", "f"), ("g", "h")]
    for version, order in enumerate(orders):
        chosen = [(members[g], g + version + 1) for g in order[:groups_in_a_sum]]
        lines += opened_sum(version, {f"{n}/{version}": w for names, w in chosen for n in names})
    report = judge(*lines, epoch=epoch_line(buffer_size=2 * groups_in_a_sum))
    assert len(report.rounds.smallest) >= 2
    assert report.rounds.determined == ()
    assert report.rounds.rank <= report.cohorts[0].most_rank


# --- the command ------------------------------------------------------------------------------


def run(tmp_path: Path, lines: Iterable[AnyLine], *options: str) -> Result:
    path = tmp_path / "transcript.jsonl"
    path.write_text("".join(texts(lines)))
    return audited(path, *options)


def audited(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["audit", str(path), *options], env={"COLUMNS": "80"})


HONEST_RUN = [epoch_line(), *opened_sum(0, WEIGHTS)]
CONFLICT = [request("other", OTHER_WEIGHTS, 1), *answers("other", range(U))]


def test_the_command_answers_in_words(tmp_path: Path) -> None:
    result = run(tmp_path, HONEST_RUN)
    assert result.exit_code == 0
    assert "Only sums were learned." in result.output
    assert "3 of 3" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_the_command_exits_with_3_when_more_was_learned(tmp_path: Path) -> None:
    result = run(tmp_path, [*HONEST_RUN, *CONFLICT])
    assert result.exit_code == 3
    words = " ".join(result.output.split())
    assert "More than sums was learned." in words
    assert "1 determined, none known in part" in words
    assert "1 single update known to 3 of 3 dimensions, under cyd/1" in words


def test_the_command_prints_json(tmp_path: Path) -> None:
    result = run(tmp_path, [*HONEST_RUN, *CONFLICT], "--json")
    shown = json.loads(result.output)
    assert result.exit_code == 3
    assert shown["only_sums"] is False
    assert shown["groups"][0]["exposed"][0]["contributor"] == "cyd"
    assert shown["epoch"]["recovery_threshold"] == U


def test_the_command_supposes_helpers(tmp_path: Path) -> None:
    assert run(tmp_path, HONEST_RUN, "--colluders", "0,1").exit_code == 0
    assert run(tmp_path, HONEST_RUN, "--colluders", "0,1,2").exit_code == 3
    assert run(tmp_path, HONEST_RUN, "--insiders", "ann,bob").exit_code == 3


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--colluders", "0,x", "'0,x' is not a list of holders"),
        ("--colluders", "9", "there is no holder 9"),
        ("--insiders", "zoe", "no update of zoe"),
    ],
)
def test_a_mistyped_helper_is_refused(tmp_path: Path, option: str, value: str, words: str) -> None:
    result = run(tmp_path, HONEST_RUN, option, value)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_broken_transcript_is_one_line_with_its_number(tmp_path: Path) -> None:
    result = run(tmp_path, HONEST_RUN[1:])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: transcript.jsonl, line 1: ")


def test_long_reports_are_cut(tmp_path: Path) -> None:
    rounds = (line for v in range(25) for line in constant_round(v, "abc"))
    assert "… and 5 more; --json has them all." in run(tmp_path, [epoch_line(), *rounds]).output


def test_the_command_says_when_the_transcript_was_cut(tmp_path: Path) -> None:
    """The lines that would have told are gone, and what is left looks fine."""
    path = tmp_path / "transcript.jsonl"
    path.write_text("".join(texts([*HONEST_RUN, *CONFLICT])[: len(HONEST_RUN)]))
    result = audited(path)
    assert result.exit_code == 4
    assert "it was CUT: its end is missing" in " ".join(result.output.split())
    assert json.loads(audited(path, "--json").output)["ending"] == "cut"


def test_the_command_says_when_the_transcript_still_grows(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    path.write_text("".join(texts(HONEST_RUN, closed=False)))
    with path.open("ab") as file:
        disk.lock(file.fileno())
        result = audited(path)
    assert result.exit_code == 0
    assert "open: not closed yet" in " ".join(result.output.split())


def test_an_update_in_clear_is_learned_whole(tmp_path: Path) -> None:
    lines = [*HONEST_RUN, PlainLine("dan/1", "dan", 0)]
    result = run(tmp_path, lines)
    words = " ".join(result.output.split())
    assert result.exit_code == 3
    assert "Single updates: 1 determined" in words
    assert "1 update came in clear: dan/1" in words
    report = judge(*lines[1:])
    assert "dan" in report.rounds.determined
    assert judge(*HONEST_RUN[1:]).only_sums  # the control


def test_nothing_in_a_file_does_anything_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    before = texts(HONEST_RUN, closed=False)
    for bad in ('{"kind":"\\u001b[2J"}', '{"kind":"end","\\u001b[2J":1}', '{"\x1b[2J":1}'):
        path.write_text("".join(before) + f'{{"line":{bad},"chain":""}}\n')
        result = CliRunner().invoke(main, ["audit", str(path)], color=True)
        assert result.exit_code == 2
        assert "\x1b" not in result.output + result.stderr


# --- budgets of privacy -----------------------------------------------------------------------


def private_epoch(max_uses: int = 1) -> EpochLine:
    """Sums of three updates of ten numbers, one of them silent."""
    privacy = Privacy(clip_norm=1.0, noise=2.0, epsilon=1.0, delta=1e-5, max_uses=max_uses)
    return epoch_line(mechanism=promise(Mechanism(privacy, K, 1, 10, 1)))


def test_every_ticket_counts_whatever_became_of_it(tmp_path: Path) -> None:
    """A retry is the same ticket; an update that was never summed is another."""
    epoch = private_epoch(max_uses=2)
    lines = [epoch, *opened_sum(0, WEIGHTS), upload("ann/1"), upload("ann/2")]
    report = audit(Transcript(lines))
    spent = {each.contributor: each for each in report.spent}
    cost = epoch.mechanism.cost(0)
    assert (spent["ann"].uploads, spent["ann"].spent) == (2, 2 * cost)
    assert (spent["bob"].uploads, spent["bob"].spent) == (1, cost)
    assert spent["ann"].epsilon == epsilon_of(2 * cost, epoch.mechanism.conversion_delta)
    assert report.over_budget == []
    assert run(tmp_path, lines).exit_code == 0


def test_whoever_is_over_the_budget_is_named(tmp_path: Path) -> None:
    lines = [private_epoch(), *opened_sum(0, WEIGHTS), upload("ann/2")]
    result = run(tmp_path, lines)
    assert result.exit_code == 3
    words = " ".join(result.output.split())
    assert "1 contributor over the budget" in words
    assert "OVER" in words
    (again,) = json.loads(run(tmp_path, lines, "--json").output)["spent"][:1]
    assert (again["contributor"], again["uploads"]) == ("ann", 2)


def test_an_old_update_costs_what_its_ticket_tells() -> None:
    epoch = private_epoch(max_uses=9)
    epoch = epoch_line(mechanism=replace(epoch.mechanism, staleness=polynomial(1.0)))
    old = UploadLine("ann/1", "ann", 0, "u", 3)
    (spent,) = audit(Transcript([epoch, old])).spent
    assert spent.spent == epoch.mechanism.cost(3) < epoch.mechanism.cost(0)


@pytest.mark.parametrize("change", [{"silent": 3}, {"members": 0}, {"size": 10**400}])
def test_noise_that_cannot_be_accounted_for_is_refused(change: dict[str, int]) -> None:
    sound = private_epoch().mechanism
    with pytest.raises(DataError, match="nothing can be accounted for"):
        Transcript([epoch_line(mechanism=replace(sound, **change))])


# --- remainders of whole weights --------------------------------------------------------------

SIX = [f"{name}/1" for name in ("ann", "bob", "cyd", "dan", "eve", "fay")]


def signed_epoch(consistency: str = "certified", **changes: object) -> EpochLine:
    """Of sums of six, with weights in the field and m = 3."""
    numbers = {"num_holders": N, "recovery_threshold": 3, "max_colluders": 1, "max_dropouts": 1}
    p = ProtocolParameters(
        **numbers | {"buffer_size": 6, "model_size": 20, "min_per_version": 3} | changes,
        weights="field",
        staleness=polynomial(1.0),
        consistency=consistency,
    )
    return EpochLine.of(Federation(p).agreement.epoch)


def six(*weights: int) -> list[AnyLine]:
    return opened_sum(0, dict(zip(SIX, weights, strict=True)))


def test_members_that_are_alone_with_their_weight_are_named() -> None:
    report = judge(*six(64, 64, 64, 22, 21, 21), epoch=signed_epoch())
    assert report.only_sums  # in the field nothing else was learned
    assert [(each.weight, each.masks) for each in report.small_groups] == [
        (21, ("eve/1", "fay/1")),
        (22, ("dan/1",)),
    ]
    assert report.certified


@pytest.mark.parametrize("weights", [(64,) * 3 + (21,) * 3, (1,) * 6])
def test_groups_of_m_and_equal_weights_are_no_finding(weights: tuple[int, ...]) -> None:
    assert judge(*six(*weights), epoch=signed_epoch()).small_groups == ()


def test_insiders_do_not_count_among_those_who_weigh_alike() -> None:
    lines = six(*(64,) * 3, *(21,) * 3)
    (found,) = judge(*lines, epoch=signed_epoch(), insiders=["eve"]).small_groups
    assert found.masks == ("dan/1", "fay/1")
    nobody_left = judge(*lines, epoch=signed_epoch(), insiders=["dan", "eve", "fay"])
    assert nobody_left.small_groups == ()
    alike = judge(*six(*(1,) * 6), epoch=signed_epoch(), insiders=["ann", "bob", "cyd", "dan"])
    assert alike.small_groups == ()  # one weight: there are no remainders


def test_a_sum_of_which_nothing_is_known_is_no_finding() -> None:
    asked = [*map(upload, SIX), request("r", dict(zip(SIX, range(1, 7), strict=True)))]
    assert judge(*asked, *answers("r", [0]), epoch=signed_epoch()).small_groups == ()


@pytest.mark.parametrize(("consistency", "status"), [("certified", 3), ("honest-server", 0)])
def test_only_a_certified_epoch_is_broken_by_it(
    consistency: str, status: int, tmp_path: Path
) -> None:
    lines = [signed_epoch(consistency), *six(64, 64, 64, 22, 21, 21)]
    path = tmp_path / "transcript.jsonl"
    path.write_text("".join(texts(lines, closed=False)))
    with path.open("ab") as file:
        disk.lock(file.fileno())
        result, written = audited(path), audited(path, "--json")
    assert result.exit_code == written.exit_code == status
    words = " ".join(result.output.split())
    assert "version 0: 1 update of weight 22, under dan/1" in words
    assert "may tell the sum of 2 groups of fewer than min_per_version members" in words
    told = json.loads(written.output)
    assert told["certified"] == (consistency == "certified")
    assert [each["weight"] for each in told["small_groups"]] == [21, 22]
