"""What it costs a participant to make a version again, beside the server's own opening of it: processor time.

    python -m benchmarks.verification

The server's opening is what its machine does when the answer comes that opens the sum: decode, subtract, step,
hash, and write down what others may check. Making it again begins with the frame as it was fetched.
"""

from __future__ import annotations

from time import process_time

import numpy as np
from rich.console import Console

from basecagg.channels.wire import limit_for, pack, unpack
from basecagg.maths.staleness import polynomial
from basecagg.parameters import ProtocolParameters
from basecagg.protocol.effects import Released
from basecagg.protocol.messages import Answer, Parts
from basecagg.protocol.recomputation import recompute
from basecagg.protocol.recovery import Recovery
from basecagg.protocol.step_rule import StepRule
from reproduction import machine
from reproduction.bench import AT_SERVER, Federation, Letter

USERS, COLLUDERS, DROPOUTS, BUFFER, SIZE = 12, 2, 2, 5, 10**6
"""N, T, D, K, d."""
ROUNDS = 5
MOST = 3.0
"""Times the server's own opening."""


def main() -> int:
    """Measure, print; fail if the bar is missed."""
    console = Console()
    about = machine.describe()
    console.print(
        f"N = {USERS}, K = {BUFFER}, d = {SIZE:,}; {about['processor']}; minima of {ROUNDS} rounds"
    )
    ratios = [_show(console, name, measure(step)) for name, step in STEPS.items()]
    console.print(f"most allowed: {MOST} × the server's opening")
    return 0 if max(ratios) <= MOST else 1


STEPS = {"sgd": StepRule(), "momentum": StepRule("momentum"), "adam": StepRule("adam", 0.01)}


def _show(console: Console, name: str, seconds: dict[str, float]) -> float:
    opening = seconds["opening"]
    told = ", ".join(
        f"{what} {1000 * s:.0f} ms ({s / opening:.2f} ×)" for what, s in seconds.items()
    )
    console.print(f"{name:9} {told}")
    return (seconds["decoding the frame"] + seconds["making again"]) / opening


def measure(step: StepRule) -> dict[str, float]:
    """Processor seconds of each part, the best round of each."""
    federation = _federation(step)
    rounds = [_round(federation, number) for number in range(ROUNDS + 1)]
    return {what: min(each[what] for each in rounds[1:]) for what in rounds[0]}


def _federation(step: StepRule) -> Federation:
    p = ProtocolParameters(
        num_holders=USERS,
        recovery_threshold=USERS - DROPOUTS - COLLUDERS,
        max_colluders=COLLUDERS,
        max_dropouts=DROPOUTS,
        buffer_size=BUFFER,
        model_size=SIZE,
        staleness=polynomial(1.0),
    )
    return Federation(p, np.zeros(SIZE, np.float32), step=step)


def _round(federation: Federation, number: int) -> dict[str, float]:
    chance, network = np.random.default_rng(number), federation.network
    for index in range(BUFFER):
        federation.deal(f"user-{index}")
        network.run()
        update = chance.normal(scale=0.1, size=SIZE).astype(np.float32)
        server = federation.server
        federation.submit(f"user-{index}", update, server.version, server.head)
    opening = _open(federation)
    federation.take_news()
    p, recovery = federation.agreement.parameters, federation.server.opening
    assert isinstance(recovery, Recovery)
    parts = recovery.kept.parts(federation.server.version)
    assert parts is not None
    frame = pack(parts)
    begun = process_time()
    again = unpack(frame, limit_for(Parts, p))
    decoded = process_time()
    assert isinstance(again, Parts)
    recompute(federation.agreement, again)
    return {
        "opening": opening,
        "decoding the frame": decoded - begun,
        "making again": process_time() - decoded,
    }


def _open(federation: Federation) -> float:
    """Deliver everything; the time of the answer that opened the sum."""
    network, opening = federation.network, 0.0
    while network.in_flight:
        letter: Letter = network.in_flight.popleft()
        begun = process_time()
        if letter.to == AT_SERVER and isinstance(letter.message, Answer):
            effects = federation.server.receive(letter.sender, letter.message)
            if any(isinstance(effect, Released) for effect in effects):
                opening = process_time() - begun
            network.perform(AT_SERVER, effects)
        else:
            network.deliver(letter.to, [letter])
    return opening


if __name__ == "__main__":
    raise SystemExit(main())
