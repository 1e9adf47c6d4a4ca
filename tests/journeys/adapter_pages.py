"""The page on language models: an adapter is trained in one process and between machines, exported and used."""

from __future__ import annotations

import json
import re

from run_pages import have
from service_pages import HERE, SOON, name_the_addresses, see_it_serve
from walks import Story, Walk, not_run, typed

HERE_IS = ("cd examples/language-model", "cp examples/language-model/*.py .")
"""Where servers and operators of a story have their folders."""
WARDS = [f"ward-{number}" for number in range(5)]
HUB = "needs a model hub"


def see_the_loss_fall(story: Story) -> None:
    """By as much as the page says, in each of three seeds."""
    losses = json.loads((story.traveller.work / "losses.json").read_text())
    assert len(losses) == 3
    for curve in losses.values():
        assert curve[0][1] > 4
        assert curve[-1][1] < 2


def all_wards_join(story: Story) -> None:
    for number, name in enumerate(WARDS[1:], start=1):
        line = f"basecagg join {name}.invitation --train notes:train --data {number}"
        story.traveller.leave_running(name, f"{line} --longest-wait 2")
    story.federation.wait_until_enrolled(*WARDS)


def see_three_versions(story: Story) -> None:
    story.federation.reach(3, seconds=1800)


def note_the_key(story: Story) -> None:
    (story.values["key"],) = re.findall(r"\b[0-9a-f]{64}\b", story.said)


def see_it_checked(story: Story) -> None:
    assert "1 of 1 checked and equal" in story.said


def see_other_words(story: Story) -> None:
    """The base goes on with everyday words, the adapter with those of a note."""
    said = dict(re.findall(r"^(base|adapted): +(.*)$", story.said, re.MULTILINE))
    assert said["base"] != said["adapted"]


ADAPTERS: dict[str, Walk] = {
    "docs/tutorial/language-model.md": Walk(
        first=have("examples/language-model"),
        steps=[
            typed("pip install "),
            typed("cd examples/language-model", HERE_IS),
            typed("python simulate.py 1 2 3", then=see_the_loss_fall),
            typed("basecagg operator init", first=name_the_addresses),
            typed("mv operator/server server"),
            typed("basecagg serve --state server", HERE, runs_as="server", then=see_it_serve),
            typed("basecagg operator invite ward-0"),
            typed("basecagg join ward-0", SOON, runs_as="ward-0", then=all_wards_join),
            typed("basecagg operator start --model notes:adapted", then=see_three_versions),
            typed("basecagg operator status"),
            typed("basecagg operator export adapter"),
            typed("basecagg operator key", then=note_the_key),
            typed("basecagg verify adapter/", ("5f1c…", "{key}"), then=see_it_checked),
            typed("python complete.py", then=see_other_words),
            not_run("basecagg join ward-0.invitation --train hub:train", HUB),
            not_run("basecagg operator start --model hub:adapted", HUB),
        ],
    )
}
