"""Pages about Flower: the example on both engines, by the commands that are printed."""

from __future__ import annotations

import re
import socket

from documented import blocks
from run_pages import have
from walks import Story, Walk, typed

from free_ports import free_port

APP = "examples/flower-mnist"
QUICK = (r"$", ' --run-config "num-server-rounds=2"')
FEWER_ROUNDS = ("buffer-size=3", "buffer-size=3 num-server-rounds=2")


def have_the_example(story: Story) -> None:
    """And a folder for Flower, which this user has no home for."""
    have(APP)(story)
    story.traveller.type('export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0')
    story.traveller.type("mkdir flwr")
    ports = {"superlink": str(free_port()), "first_node": str(free_port())}
    story.values |= ports | {"app": str(story.traveller.work / APP)}


def go_there(story: Story) -> None:
    have_the_example(story)
    story.traveller.type(f"cd {APP}")


def name_the_superlink(story: Story) -> None:
    """Wait until it listens; write Flower's file as the page has it."""
    port = int(story.values["superlink"])
    with_it = ("127.0.0.1", port)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(with_it) == 0

    story.traveller.wait_until(listens, "a SuperLink listens")
    (settings,) = [block for block in blocks(story.page, "toml") if "superlink.ours" in block]
    settings = settings.replace("9092", str(port)).replace("/path/to", story.values["app"])
    story.traveller.write("flwr/config.toml", settings)


def see_accuracy(story: Story) -> None:
    assert re.search(r"round 2: accuracy", story.said), story.said[-3000:]


FLOWER: dict[str, Walk] = {
    "docs/how-to/flower.md": Walk(
        first=have_the_example,
        substitutions=[
            ("9092", "{superlink}"),
            ("9100", "{first_node}"),
            (f"/path/to/{APP}", "{app}"),
        ],
        steps=[
            typed("pip install "),
            typed("cd examples/flower-mnist"),
            typed("export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"),
            typed("flwr run . --stream", QUICK, then=see_accuracy),
            typed("mkdir -p federation && cd federation"),
            typed("openssl req -x509"),
            typed("for i in 0 1 2 3 4 5; do ssh-keygen"),
            typed("flower-superlink --port", then=name_the_superlink),
            typed("for i in 0 1 2 3 4 5; do\n    flwr supernode register"),
            typed("flwr run /path/to/examples/flower-mnist", FEWER_ROUNDS, then=see_accuracy),
        ],
    ),
    "examples/flower-mnist/README.md": Walk(
        first=go_there,
        steps=[
            typed("pip install "),
            typed("export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"),
            typed("flwr run . --stream", QUICK, then=see_accuracy),
        ],
    ),
}
