"""What figures were measured on, and how much memory a process has used at most."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from basecagg import __version__


def describe() -> dict[str, Any]:
    """The machine, the versions that matter to the figures, and today's date."""
    return {
        "basecagg": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba", "cryptography")},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        "date": datetime.now(UTC).date().isoformat(),
    }


def in_words(*machines: Mapping[str, Any]) -> str:
    """The machines as a line."""
    return "; then ".join(
        ", ".join(f"{name} {value}" for name, value in each.items()) for each in machines
    )


def peak_memory() -> int:
    """Bytes that this process held at most.

    On Linux not from getrusage: a child started by exec begins with its parent's maximum there.
    """
    if found := _look_up("/proc/self/status", r"VmHWM:\s+(\d+) kB"):
        return int(found) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory() -> int:
    """Bytes that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    known = _look_up("/proc/cpuinfo", r"model name\s*: (.+)")
    return known or platform.processor() or platform.machine()


def _look_up(file: str, pattern: str) -> str:
    """What Linux says in this file; '' elsewhere."""
    path = Path(file)
    found = re.search(pattern, path.read_text()) if path.exists() else None
    return found[1] if found else ""
