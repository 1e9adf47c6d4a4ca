"""Private asynchronous training for people who already have a Flower app: a strategy and a mod.

This is the only room that imports flwr. It drives the protocol's machines and computes no mask, weight or sum.
"""

from basecagg.extras import require

require("flwr", extra="flower", needed_for="training on Flower")

from basecagg.flower.mod import basecagg_mod  # noqa: E402 - flwr is asked for first
from basecagg.flower.strategy import BufferedSecAgg  # noqa: E402
from basecagg.planning.budget import Budget  # noqa: E402

__all__ = ["Budget", "BufferedSecAgg", "basecagg_mod"]
