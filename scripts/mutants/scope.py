"""Which files are changed, and on which tests they are tried: the likeliest and quickest first."""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("channels", "protocol")
FILES = ("maths/randomness.py", "service/signing.py")

CODE_ALONE = (  # these try the code of the masks, which is not changed here
    "tests/claims/test_server_and_colluders_see_only_the_sum.py",
    "tests/claims/test_shares_are_uniform.py",
)
SLOW_TO_LOAD = ("tests/protocol/test_statements.py",)
LONG = (
    "tests/protocol/test_crashes.py",
    "tests/protocol/test_example.py",
    "tests/protocol/test_fuzz.py",
    "tests/protocol/test_participant_histories.py",
    "tests/protocol/test_schedules.py",
)
LATER = CODE_ALONE + SLOW_TO_LOAD + LONG
MACHINES = (
    *("tests/protocol", "tests/claims", "tests/channels"),
    *("tests/storage/test_restored_machines.py", *SLOW_TO_LOAD, *LONG),
)
TRIED_ON = {
    "maths/randomness.py": ("tests/maths/test_randomness.py", "tests/protocol/test_masking.py"),
    "service/signing.py": (
        *("tests/service/test_signing.py", "tests/service/test_hostile.py", *SLOW_TO_LOAD),
    ),
    "channels/key_agreement.py": (
        *("tests/baselines/test_key_agreement.py", "tests/claims/test_secrets_never_print.py"),
    ),
    "channels": ("tests/channels", *MACHINES),
    "protocol/messages.py": (*SLOW_TO_LOAD, *MACHINES),
    "protocol": MACHINES,
}
"""By file, or by folder for all others: tests in the order in which they are tried."""


def modules(source: Path) -> list[str]:
    """Every file in scope."""
    found = [path for folder in FOLDERS for path in (source / folder).glob("*.py")]
    return sorted([*(path.relative_to(source).as_posix() for path in found), *FILES])


def tests_of(module: str, root: Path) -> list[str]:
    """The tests of a file, as files, in the order of trial."""
    places = TRIED_ON.get(module) or TRIED_ON[module.partition("/")[0]]
    found: list[str] = []
    for path in places:
        inside = (each.relative_to(root).as_posix() for each in (root / path).glob("test_*.py"))
        found += sorted(name for name in inside if name not in LATER) or [path]
    return list(dict.fromkeys(found))
