"""Some of these tests use the same small federation as the tests of the machines."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "protocol"))
