"""What the kernels ask of the compiler: its options, fused multiply-add, memory without ceremony.

Numba checks every array index for being negative, and counts references with a locked instruction at
every slice. In loops over a hundred numbers that costs as much as the arithmetic. So the kernels
take plain pointers. The caller of a kernel has checked the shapes, and keeps the arrays alive.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CellType, FunctionType
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba.extending import intrinsic

Pointer = Any
"""Memory as a kernel sees it: indexed like a vector, knows neither its length nor its owner."""

Addresses = npt.NDArray[np.uint64]
"""Where rows begin. The code that makes one keeps the rows alive."""

_config: Any = numba.config


def use_wide_vectors(features: str) -> str | None:
    """The CPU's features for numba, if it has 512-bit vectors: LLVM leaves them alone unless told so.

    It fears a lower clock. Our loops are long, and 1.6 to 2.5 times as fast with them.
    """
    return f"{features},-prefer-256-bit" if "+avx512f" in features.split(",") else None


if _config.CPU_FEATURES is None:  # else somebody has chosen: the user, by NUMBA_CPU_FEATURES
    _config.CPU_FEATURES = use_wide_vectors(get_host_cpu_features().flatten())

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}

_F = TypeVar("_F", bound=Callable[..., Any])

_uncached: list[Any] = []
"""Kernels that every process compiles again, because no folder for a cache can be written to."""


def inner(function: _F) -> _F:
    """A part of a kernel: compiled into the kernels that call it."""
    return cast(_F, numba.njit(**_OPTIONS)(function))


def kernel(function: _F) -> _F:
    """A whole kernel: called from Python, runs without the interpreter's lock, is kept in a cache.

    Numba's cache looks at the file of a kernel and at the variables that it closes over, but not at
    the files of its parts. So every kernel closes over a digest of this room: machine code is not
    used any more when any of it has changed.
    """
    plain = cast(FunctionType, function)
    code = plain.__code__.replace(co_freevars=("room",))
    stamped = FunctionType(code, plain.__globals__, closure=(CellType(_ROOM),))
    stamped.__doc__ = plain.__doc__
    compiled = numba.njit(**_OPTIONS)(stamped)
    if not _cached(compiled):
        _uncached.append(compiled)
    return cast(_F, compiled)


def find_cache(spare: Path | None = None) -> bool:
    """Whether all kernels so far have a cache; those without one get it in the spare folder, if given."""
    if _uncached and spare is not None:
        _config.CACHE_DIR = str(spare.absolute())
        _uncached[:] = [each for each in _uncached if not _cached(each)]
    return not _uncached


def _cached(compiled: Any) -> bool:
    """Give a kernel a cache, unless numba finds no folder for it that can be written to."""
    place = _config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~")
    if not os.path.isabs(place):
        return False  # nobody knows a home: numba would use the working directory, which may be anybody's
    try:
        compiled.enable_caching()
    except RuntimeError:
        return False
    return True


def digest_of(directory: Path) -> str:
    """SHA-256 of the sources in a directory."""
    digest = hashlib.sha256()
    for file in sorted(directory.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


_ROOM = digest_of(Path(__file__).parent)
_types: Any = numba.types


def _fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    signature = _types.float64(_types.float64, _types.float64, _types.float64)
    return signature, lambda context, builder, signature, arguments: builder.fma(*arguments)


def _words_at(typing: Any, address: Any) -> Any:
    def point(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return _types.CPointer(_types.uint32)(_types.uint64), point


def _numbers_of(typing: Any, array: Any) -> Any:
    def point(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return _types.CPointer(array.dtype)(array), point


def _fetch_to(nearness: int) -> Any:
    def fetch(typing: Any, address: Any) -> Any:
        def ask(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            form = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], form)
            place, to_read, data = builder.inttoptr(arguments[0], byte), number(0), number(1)
            builder.call(prefetch, [place, to_read, number(nearness), data])
            return context.get_dummy_value()

        return _types.void(_types.uint64), ask

    return fetch


_intrinsic: Any = intrinsic

fma: Callable[[float, float, float], float] = _intrinsic(_fma)
"""a·b + c, rounded once. (An instruction on x86 since 2013 and on every 64-bit ARM.)"""

words_at: Callable[[np.uint64], Pointer] = _intrinsic(_words_at)
"""The row of uint32 that begins at an address."""

numbers_of: Callable[[npt.NDArray[Any]], Pointer] = _intrinsic(_numbers_of)
"""The numbers of an array that the caller of the kernel holds."""

fetch_soon: Callable[[np.uint64], None] = _intrinsic(_fetch_to(3))
"""Ask for the cache line at an address, and do not wait. The address need not be valid."""

fetch_early: Callable[[np.uint64], None] = _intrinsic(_fetch_to(2))
"""The same for later: the line waits in the second cache, where it pushes nothing aside."""

CACHE_LINE = 64
"""Bytes."""


def addresses_of(rows: Sequence[npt.NDArray[np.uint32]] | npt.NDArray[np.uint32]) -> Addresses:
    """Where each row begins, of a contiguous matrix or of a sequence of contiguous vectors."""
    if isinstance(rows, np.ndarray):
        first, step = rows.ctypes.data, rows.strides[0]
        return np.uint64(first) + np.arange(len(rows), dtype=np.uint64) * np.uint64(step)
    return np.array([row.ctypes.data for row in rows], np.uint64)
