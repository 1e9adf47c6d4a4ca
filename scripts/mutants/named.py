"""Mutants with a name: rules whose loss no test noticed once. `make named` sees each of them killed.

Unlike the sample of `make mutants`, these are tried on the code as it lies here, and need no Cosmic Ray. The
text that is changed is short, so that it outlives edits around it; tests/test_mutants.py says when it does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "basecagg"
_RULES = "tests/protocol/test_rules_once_missed.py"
_BESIDE, _CLEAR = "tests/flower/test_beside_the_model.py", "tests/flower/test_no_clear_update.py"
_WATCH, _STILL = "tests/protocol/test_model_watch.py", "tests/protocol/test_standing_still.py"
_SECRETS = "tests/storage/test_secrets_leave.py"
_FEW = "tests/claims/test_one_model_gives_few_sums.py"
_LETTERS = "tests/protocol/test_short_letters.py"
_TOLD = "tests/claims/test_a_sum_tells_no_more_than_its_numbers.py"
_KEYS = "tests/protocol/test_key_masks_in_sums.py"
_OPEN, _OPEN_EPOCH = "tests/protocol/test_in_clear.py", "tests/parties/test_epoch_in_clear.py"
_ONCE = "tests/protocol/test_one_visit.py"
_SECONDS = 300


@dataclass(frozen=True)
class Named:
    """One mutant: in `module` the text `was`, which is there once, becomes `now`."""

    name: str
    module: str
    was: str
    now: str
    tests: tuple[str, ...] = (_RULES,)
    """Files, of which one must fail."""

    @property
    def code(self) -> str:
        """The changed file."""
        text = (SOURCE / self.module).read_text("utf-8")
        if text.count(self.was) != 1:
            raise SystemExit(f"{self.name}: {self.module} has not once: {self.was}")
        return text.replace(self.was, self.now)


NAMED = (
    Named(
        "a floor that allows nothing in clear takes an epoch with protection none",
        "protocol/floor.py",
        "if not self.allow_clear:",
        "if False:",
        (_OPEN,),
    ),
    Named(
        "a participant whose word was taken back goes on in clear",
        "protocol/participant.py",
        "if not self._floor.allow_clear:",
        "if False:",
        (_OPEN,),
    ),
    Named(
        "an update in clear needs no signature of a member",
        "protocol/clear_opening.py",
        "self.agreement.require_signed(update.ticket, key, update.ticket.signature)",
        "pass",
        (_OPEN_EPOCH,),
    ),
    Named(
        "a restored server signs another model in clear",
        "protocol/clear_opening.py",
        "return self._may_sign\n",
        "return True\n",
        (_OPEN_EPOCH,),
    ),
    Named(
        "an update in clear counts again when it comes again",
        "protocol/opening.py",
        "return ended.verdict if ended else None",
        "return None",
        (_OPEN_EPOCH,),
    ),
    Named(
        "a holder takes a model that was made from another sum",
        "protocol/holder.py",
        "previous.digest != link.digest",
        "False",
    ),
    Named(
        "a holder signs a sum after it signed another with the same mask",
        "protocol/holder.py",
        'if all(self._held[mask.key].state == "held" for mask in request.masks):',
        "if True:",
    ),
    Named(
        "everybody knows which versions a participant recomputes",
        "protocol/participant.py",
        'Persist("coin", "", self._entropy(SEED_BYTES))',
        'Persist("coin", "", bytes(SEED_BYTES))',
    ),
    Named(
        "a server may forget what it asked for",
        "protocol/recovery.py",
        'self._request),\n            write("past", "", self._past, irreversible=True)',
        'self._request),\n            write("past", "", self._past)',
    ),
    Named(
        "an older copy by two commits passes for the store itself",
        "storage/anchor.py",
        "0 <= store.counter - self.counter <= 1",
        "0 <= store.counter - self.counter <= 2",
        ("tests/storage/test_anchor.py",),
    ),
    Named(
        "the seed of a mask that expires unused stays in the log",
        "protocol/contributor.py",
        "harmless=not mask.seed",
        "harmless=True",
        (_SECRETS,),
    ),
    Named(
        "a used seed stays in the log",
        "storage/participant_store.py",
        'return write.irreversible and write.kind == "mask"',
        "return False",
        (_SECRETS,),
    ),
    Named(
        "only the last write to a mask decides whether its seed stays in the log",
        "storage/participant_store.py",
        "any(map(_destroys, writes))",
        "any(map(_destroys, [*batch.stored, *batch.deleted]))",
        (_SECRETS,),
    ),
    Named(
        "noise and rounding share a stream",
        "protocol/masking.py",
        '"private noise"',
        '"private rounding"',
    ),
    Named(
        "the key that sealed an envelope is not signed",
        "protocol/merkle.py",
        'return hashlib.sha256(b"\\x02" + sender + top).digest() if sender else top',
        "return top",
        ("tests/claims/test_a_holder_refuses_a_forged_or_misdelivered_share.py",),
    ),
    Named(
        "a certificate that comes alone does not tell of a clone",
        "protocol/participant.py",
        "return [message]\n        case CertifiedRequest",
        "return []\n        case CertifiedRequest",
        (_LETTERS,),
    ),
    Named(
        "a holder answers another request than the short one that it was sent",
        "protocol/short_letters.py",
        "said if said.digest == letter.digest else None",
        "said",
        (_LETTERS,),
    ),
    Named(
        "a certificate alone is taken for that of the last request",
        "protocol/short_letters.py",
        "known.digest == letter.digest",
        "True",
        (_LETTERS,),
    ),
    Named(
        "an earlier request takes the place of the last one",
        "protocol/short_letters.py",
        "is_new and _slot(request) >= _slot(last)",
        "is_new",
        (_LETTERS,),
    ),
    Named(
        "a copy of a request with another signature is kept",
        "protocol/short_letters.py",
        "request.digest != last.digest",
        "request != last",
        (_LETTERS,),
    ),
    Named(
        "who cannot follow is not sent the long form",
        "protocol/recovery.py",
        "return self._ask([index]) if is_present and is_awaited else []",
        "return []",
        (_LETTERS,),
    ),
    Named(
        "silence is answered with the short form again",
        "protocol/recovery.py",
        "def _ask(self, holders: Sequence[int], *, short: bool = False)",
        "def _ask(self, holders: Sequence[int], *, short: bool = True)",
        (_LETTERS,),
    ),
    Named(
        "whoever comes back is asked in the short form",
        "protocol/recovery.py",
        "def _question(self, *, short: bool = False)",
        "def _question(self, *, short: bool = True)",
        (_LETTERS,),
    ),
    Named(
        "certificates list holders in any order",
        "protocol/epoch.py",
        "holders != sorted(set(holders))",
        "len(set(holders)) != len(holders)",
        (_LETTERS,),
    ),
    Named(
        "any certificate of the epoch vouches for a model",
        "protocol/recomputation.py",
        "(c.version, c.head, c.digest) != (before, history.heads[before], link.digest)",
        "False",
    ),
    Named(
        "a fresh update is charged as an old one",
        "protocol/ledger.py",
        "mechanism.costs(staleness)",
        "mechanism.costs(max(staleness, 1))",
    ),
    Named(
        "a Flower node shows its app any config",
        "flower/contract.py",
        "config_digest(config) != contract.configs[order.task]",
        "False",
        (_BESIDE,),
    ),
    Named(
        "a Flower node shows its app any names and whole numbers",
        "flower/contract.py",
        "layout_digest(layout, order.arrays_key, order.config_key) != contract.layout",
        "False",
        (_BESIDE,),
    ),
    Named(
        "a Flower node shows its app records that nobody agreed on",
        "flower/contract.py",
        "if odd:",
        "if False:",
        (_BESIDE,),
    ),
    Named(
        "the log of a Flower server has the words of nodes as they are",
        "flower/node_view.py",
        "self.problem = bounded(problem)",
        "self.problem = problem",
        ("tests/flower/test_told.py",),
    ),
    Named(
        "a Flower node answers every strategy in clear",
        "flower/mod.py",
        'if told != "none":',
        "if False:",
        (_CLEAR,),
    ),
    Named(
        "the text of an app's exception leaves a Flower node",
        "flower/mod.py",
        "raise AppFailedError(error) from None",
        "raise",
        (_CLEAR,),
    ),
    Named(
        "a version is checked by its number alone",
        "protocol/model_watch.py",
        'told | {head} <= {self._checked[version], b""}',
        "True",
        (_WATCH,),
    ),
    Named(
        "a flood of older words pushes out the word on a checked version",
        "protocol/model_watch.py",
        "start = (len(loose) - surplus) // 2",
        "start = len(loose) - surplus",
        (_WATCH,),
    ),
    Named(
        "the clock of the service stands still while updates wait",
        "service/server/host.py",
        "return self.machine.is_opening or (is_open and self.machine.waits_for_time)",
        "return self.machine.is_opening",
        ("tests/service/test_spoiled_sums.py",),
    ),
    Named(
        "the deadline of a simulated server does not pass while updates wait",
        "simulation/secure_sums.py",
        "while self.server.is_opening or self.server.waits_for_others:",
        "while self.server.is_opening:",
        ("tests/simulation/test_aggregator.py",),
    ),
    Named(
        "the clock of a ServerApp stands still while updates wait",
        "flower/coordinator.py",
        "if self.server is not None:\n            self.server.tick(",
        "if self.server is not None and self.server.machine.is_opening:\n            self.server.tick(",
        ("tests/flower/test_pardon_on_flower.py",),
    ),
    Named(
        "a question about a checked version may mean another model",
        "protocol/participant.py",
        "self.watch.is_due(request.version, request.history.head)",
        "self.watch.is_due(request.version)",
        ("tests/parties/test_questions_about_checked_versions.py",),
    ),
    Named(
        "every epoch of a model allows as many burns as the first",
        "protocol/contributor.py",
        "base.epochs + burns - base.before",
        "1 + burns",
        (_FEW,),
    ),
    Named(
        "no epoch of a model but the first allows a burn",
        "protocol/contributor.py",
        "max(1, base.epochs + burns - base.before)",
        "1 if base.before else 1 + burns",
        (_STILL,),
    ),
    Named(
        "whoever uploads twice throws out the oldest update that waits",
        "protocol/server.py",
        "if self._members or self.opening.leaves_out:",
        "if self._members:",
        (_STILL,),
    ),
    Named(
        "holders let members of one version have two tiers",
        "protocol/holder.py",
        "if least > 1 and len({version",
        "if False and len({version",
        (_TOLD,),
    ),
    Named(
        "holders let somebody be alone with a version",
        "protocol/holder.py",
        "if min(kinds.values()) < least:",
        "if False:",
        (_TOLD,),
    ),
    Named(
        "the buffer fills a version with two tiers",
        "protocol/buffer.py",
        "next_version = next(others, len(kinds))",
        "next_version = index + 1",
        (_TOLD,),
    ),
    Named(
        "a contributor uploads from one version again and again",
        "protocol/contributor.py",
        "return version == base.version and len(base.uploads) < most",
        "return True",
        (_TOLD,),
    ),
    Named(
        "whoever has the seed of a mask has its errors",
        "protocol/contributor.py",
        "fresh = self._entropy(SEED_BYTES) if",
        "fresh = bytes(255 - byte for byte in seed) if",
        (_KEYS,),
    ),
    Named(
        "all uploads have the same errors",
        "protocol/contributor.py",
        "fresh = self._entropy(SEED_BYTES) if",
        "fresh = bytes(SEED_BYTES) if",
        (_KEYS,),
    ),
    Named(
        "words behind a key may be anything",
        "protocol/recomputation.py",
        "if zeros or pad >",
        "if pad >",
        (_KEYS,),
    ),
    Named(
        "a pad may be anything where keys are shared",
        "protocol/recomputation.py",
        "if zeros or pad > p.buffer_size * p.error_reach:",
        "if zeros:",
        (_KEYS,),
    ),
    Named(
        "a mask that came with its update hides another one",
        "protocol/epoch.py",
        "if digest_of(ticket) != promised:",
        "if False:",
        (_ONCE,),
    ),
    Named(
        "a mask that came with its update outlives it",
        "protocol/epoch.py",
        "if mask.expires != last:",
        "if False:",
        (_ONCE,),
    ),
    Named(
        "a holder forgets which update a mask came with",
        "protocol/holder.py",
        "self.agreement.require_promised(ticket, held.ticket)",
        "pass",
        (_ONCE,),
    ),
    Named(
        "masks are dealt without an update where contributors come once",
        "protocol/epoch.py",
        "if (dealing.ticket is not None) != self.parameters.one_visit:",
        "if False:",
        (_ONCE,),
    ),
    Named(
        "the seed of a mask that comes with its update is stored",
        "protocol/contributor.py",
        'dealing=dealing.key, seed=b"", state=state',
        "dealing=dealing.key, seed=seed, state=state",
        (_ONCE,),
    ),
    Named(
        "parked updates take up no room",
        "protocol/buffer.py",
        "return [*self.waiting, *self.parked]",
        "return [*self.waiting]",
        (_ONCE,),
    ),
    Named(
        "parked updates are never returned",
        "protocol/server.py",
        "late = [each for each in parked if self._parked_since[each.name] < latest]",
        "late: list[BufferedUpdate] = []",
        (_ONCE,),
    ),
    Named(
        "an update that was refused at the door may come again",
        "protocol/recovery.py",
        "return [*self.mailroom.refuse(update.dealing), Send(name.contributor, closing)]",
        "return [Send(name.contributor, closing)]",
        (_ONCE,),
    ),
    Named(
        "holders that confirm late are not asked",
        "protocol/recovery.py",
        "effects = [*confirmed, *self._ask_also(message.holder)]",
        "effects = confirmed",
        (_ONCE,),
    ),
)


def main() -> None:
    """Try them all in a copy of the sources; exit status 1 if one survives."""
    survived = 0
    with tempfile.TemporaryDirectory(prefix="named-") as folder:
        copy = Path(folder) / "basecagg"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for tests in dict.fromkeys(each.tests for each in NAMED):
            if _fails(tests, folder):
                sys.exit(f"{' '.join(tests)} fail on the code as it is")
        for each in NAMED:
            changed, unchanged = copy / each.module, (SOURCE / each.module).read_text("utf-8")
            changed.write_text(each.code, encoding="utf-8")
            killed = _fails(each.tests, folder)
            changed.write_text(unchanged, encoding="utf-8")
            survived += not killed
            print(f"{'killed' if killed else 'survived'}: {each.name}", flush=True)
    sys.exit(1 if survived else 0)


def _fails(tests: tuple[str, ...], source: str) -> bool:
    """Whether a test of these files fails, or does not end, on the package in this folder."""
    # No bytecode: two changes of one file may come within the second that it remembers.
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


if __name__ == "__main__":
    main()
