"""`import basecagg` is quick because it imports nothing heavy: numpy and numba come when they are used."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "numpy",
    "numba",
    "cryptography",
    "nacl",
    "msgspec",
    "psycopg",
    "click",
    "rich",
    "torch",
    "flwr",
)


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_package_imports_nothing_heavy() -> None:
    assert not loaded_by("import basecagg; basecagg.ProtocolParameters") & set(HEAVY)


def test_the_check_notices_what_is_imported() -> None:
    assert "numpy" in loaded_by("import basecagg.maths.randomness")
