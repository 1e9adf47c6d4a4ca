"""Nothing here runs without torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
