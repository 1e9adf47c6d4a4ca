"""What the figures were measured on, and how much memory a process has used at most."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def describe() -> dict[str, str | int]:
    """The machine, the versions that matter to the figures, and today's date."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "numba", "cryptography")},
        "date": datetime.now(UTC).date().isoformat(),
    }


def peak_memory() -> int:
    """Bytes that this process held at most.

    On Linux not from getrusage: a child started by exec begins with its parent's maximum there.
    """
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"model name\s*: (.+)", cpuinfo.read_text())):
        return found[1]
    return platform.processor() or platform.machine()
