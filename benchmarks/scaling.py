"""How time and memory grow with users and model size. Every size has a process of its own.

`python -m benchmarks.scaling 1000 10000000` measures one size and prints it as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from basecagg.maths.kernels import warm_up
from basecagg.maths.mds_code import MaskCode
from basecagg.maths.randomness import FieldStream, new_seed
from benchmarks.sizes import MODULUS, Sizes
from benchmarks.timing import Task, minima
from reproduction.machine import peak_memory


def measure_apart(sizes: Sizes) -> dict[str, float]:
    """One row of the table, from a fresh process."""
    command = [sys.executable, "-m", "benchmarks.scaling", str(sizes.n), str(sizes.d)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    row: dict[str, float] = json.loads(told)
    return row


def measure(sizes: Sizes) -> dict[str, float]:
    """Seconds to encode and to decode on all cores, and the most memory that took.

    A process with nothing but the kernels loaded is `idle`; `data` is mask, noise and all shares.
    """
    warm_up()
    idle = peak_memory()
    stream = FieldStream(new_seed(), MODULUS)
    code = MaskCode(sizes.n, sizes.u, sizes.t, modulus=MODULUS)
    mask = stream.draw(sizes.padded)
    noise = stream.draw(sizes.t * sizes.width).reshape(sizes.t, sizes.width)
    shares = np.empty((sizes.n, sizes.width), np.uint32)
    answers = {user: shares[user] for user in range(sizes.n - sizes.u, sizes.n)}
    times = minima(
        [
            Task("encode", lambda: code.encode(mask, noise, out=shares), repeats=3),
            Task("decode", lambda: code.decode(answers), repeats=3),
        ]
    )
    assert np.array_equal(code.decode(answers), mask)
    return {
        "users": sizes.n,
        "model_size": sizes.d,
        **times,
        "idle_bytes": idle,
        "data_bytes": mask.nbytes + noise.nbytes + shares.nbytes,
        "peak_bytes": peak_memory(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(Sizes(n=int(sys.argv[1]), d=int(sys.argv[2])))))
