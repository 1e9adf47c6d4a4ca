"""Effects and news: what a machine said stays as it was said, whoever carries it out."""

import inspect

import numpy as np
from msgspec import Struct

from basecagg.protocol import effects
from basecagg.protocol.effects import Released
from basecagg.protocol.messages import MaskName


def test_none_can_be_changed():
    kinds = [kind for _, kind in inspect.getmembers(effects, inspect.isclass) if _is_own(kind)]
    assert len(kinds) > 8
    assert all(kind.__struct_config__.frozen for kind in kinds)


def _is_own(kind):
    return kind.__module__ == effects.__name__ and issubclass(kind, Struct)


def test_an_opened_sum_is_itself_and_no_other():
    """Its numbers are not compared: that would take long, and NumPy has no single answer."""
    said = (1, (MaskName("ann", bytes(16)),), (0,), (1.0,), np.zeros(3))
    one, other = Released(*said), Released(*said)
    assert len({one, one, other}) == 2
