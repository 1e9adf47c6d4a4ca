"""Arrays of field elements at the door: type, shape and memory, before a kernel sees an address."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from basecagg.errors import DataError

Elements = npt.NDArray[np.uint32]


def checked(array: Elements, name: str) -> Elements:
    """The array, if it is uint32; copied if a kernel could not read it where it lies."""
    if not isinstance(array, np.ndarray):
        raise DataError(f"{name} must be a numpy array of uint32, not {type(array).__name__}")
    if array.dtype != np.uint32:
        raise DataError(
            f"{name} is {array.dtype} but must be uint32: elements of the field are words in 0…q−1"
        )
    flags = array.flags
    if flags.c_contiguous and flags.aligned and type(array) is np.ndarray:
        return array
    return np.require(array, requirements=["C", "ALIGNED"])


def checked_shape(array: Elements, name: str, shape: tuple[int, ...]) -> Elements:
    """The same, if the array has this shape."""
    array = checked(array, name)
    if array.shape != shape:
        raise DataError(f"{name} has shape {array.shape} but must have {shape}")
    return array


def destination(out: Elements | None, shape: tuple[int, ...], *sources: Elements) -> Elements:
    """Memory for a result that overlaps no source: `out` if it will do, else fresh."""
    if out is None:
        return np.empty(shape, np.uint32)
    if checked_shape(out, "out", shape) is not out or not out.flags.writeable:
        raise DataError(f"out must be writeable and contiguous: np.empty({shape}, np.uint32)")
    if any(np.may_share_memory(out, source) for source in sources):
        raise DataError("out overlaps what the result is computed from: give it its own memory")
    return out


def check_values(array: Elements, name: str, modulus: int) -> None:
    """Refuse values ≥ q: reducing what a peer sent would hide that it is malformed.

    The text says where, not what: it may be a word of a mask.
    """
    if array.size and int(array.max()) >= modulus:
        raise DataError(
            f"{name} holds a value at position {int(array.argmax())} that is not below q = {modulus}:"
            " refuse the message it came with, or reduce your own numbers mod q"
        )
