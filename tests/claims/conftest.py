"""The claims use the same small federation as the tests of the machines, and the oracles of the maths."""

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS / room) for room in ("protocol", "maths")]
