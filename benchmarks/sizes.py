"""The sizes of a case, as KERNELS' bars fix them: U = 0.7 N, T = 0.5 N."""

from __future__ import annotations

from dataclasses import dataclass

from basecagg.maths.primes import PAPER_MODULUS as MODULUS

__all__ = ["MODULUS", "Sizes"]


@dataclass(frozen=True)
class Sizes:
    """N users and a model of d numbers."""

    n: int
    d: int

    @property
    def u(self) -> int:
        """U: answers that open a sum."""
        return 7 * self.n // 10

    @property
    def t(self) -> int:
        """T: colluders who learn nothing."""
        return self.n // 2

    @property
    def width(self) -> int:
        """Numbers in one share."""
        return -(-self.d // (self.u - self.t))

    @property
    def padded(self) -> int:
        """Numbers in one mask."""
        return self.width * (self.u - self.t)
