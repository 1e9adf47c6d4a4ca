"""An agent gives up its unused masks at every start: however often that is, its updates still get in."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from service_harness import SMALL, Nudge, federation

NAMES = [f"user-{index}" for index in range(SMALL.num_holders)]
OFTEN = 2 * SMALL.mask_quota + 2
"""With two masks a start, more than server and holders would keep of one contributor twice over."""


async def test_an_agent_that_is_restarted_again_and_again_gets_its_updates_in(
    tmp_path: Path,
) -> None:
    async with federation(tmp_path) as fed:
        await fed.begin(NAMES)
        await fed.reach(1)
        for _ in range(OFTEN):
            await fed.stop(NAMES[0])
            training = Nudge()
            fed.launch(fed.profile(NAMES[0]), training)
            await fed.until(partial(_trained, training, 1))  # a fresh mask was dealt, and is ready
        await fed.until(partial(_trained, training, 3))  # two updates have had their outcome
        await fed.reach(await fed.version() + 2)


async def _trained(training: Nudge, times: int) -> bool:
    return training.calls >= times
