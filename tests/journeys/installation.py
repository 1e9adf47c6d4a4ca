"""The built wheel in an environment of its own, and a user who may write nowhere but in one folder.

People who try basecagg have a wheel, an account, and often no home that they can write to: a service's user, or
the user of a container. Where we are root, journeys are made by `nobody`; elsewhere by ourselves.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
STUDY = ("SurvSet>=0.2.11", "lifelines>=0.30")
"""What `make study` needs besides the package."""
ADAPTERS = ("peft>=0.17", "transformers>=4.56")
"""What the tutorial on language models needs."""
NO_HOME = "/nonexistent"


class Installation(NamedTuple):
    """An environment that has the wheel, and where compiled kernels are kept between journeys."""

    place: Path
    wheel: Path
    whose: Mapping[str, Any]

    @property
    def programs(self) -> Path:
        return self.place / "env" / "bin"

    @property
    def surroundings(self) -> dict[str, str]:
        """All that the shell of such a user says; of ours only where this machine has its packages."""
        return {
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": NO_HOME,
            "XDG_CACHE_HOME": str(self.place / "cache"),
        }


def install(place: Path, *, whole: bool) -> Installation:
    """Build the wheel and install it: with all extras, or with what we have here as its dependencies."""
    place.chmod(0o755)
    account = Account()
    checked(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place, ROOT)
    (wheel,) = place.glob("basecagg-*.whl")
    checked(account.interpreter, "-m", "venv", "--without-pip", place / "env")
    pip = (sys.executable, "-m", "pip", "--python", place / "env/bin/python", "install", "--quiet")
    if whole:
        checked(*pip, "--no-compile", f"{wheel}[all]", "pip", *STUDY, *ADAPTERS)
    else:
        checked(*pip, "--no-compile", "--no-deps", wheel)
        (site,) = (place / "env" / "lib").glob("python*/site-packages")
        ours = Path(sys.prefix, "lib", site.parent.name, "site-packages")
        (site / "dependencies.pth").write_text(f"{ours}\n")
    (place / "cache").mkdir()
    made = Installation(place, wheel, account.whose)
    hand_over(place / "cache", made.whose)
    return made


class Account:
    """Who travels: nobody, if there is a Python that nobody may run; else ourselves."""

    @cached_property
    def interpreter(self) -> Path:
        return self._for_nobody or Path(sys.executable)

    @cached_property
    def whose(self) -> Mapping[str, Any]:
        return self._nobody if self._for_nobody else {}

    @cached_property
    def _nobody(self) -> Mapping[str, Any]:
        if os.getuid() != 0:
            return {}
        user = pwd.getpwnam("nobody")
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    @cached_property
    def _for_nobody(self) -> Path | None:
        """A Python of our own version: ours may lie in root's home."""
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        others = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
        candidates = [Path(sys.executable).resolve(), *([Path(others)] if others else [])]
        return next(filter(self._may_run, candidates), None) if self._nobody else None

    def _may_run(self, interpreter: Path) -> bool:
        try:
            done = subprocess.run(
                [interpreter, "-c", "import venv"], cwd="/", env={}, check=False, **self._nobody
            )
        except PermissionError:
            return False
        return done.returncode == 0


def checked(*command: str | Path) -> None:
    """Run it; all it said if it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr


def hand_over(folder: Path, whose: Mapping[str, Any]) -> None:
    """A folder and all that is in it belongs to the user from now on."""
    if whose:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, whose["user"], whose["group"], follow_symlinks=False)
