"""Flower's quickstart for PyTorch, converted by the how-to's diff, on both engines, by the wheel's programs."""

from __future__ import annotations

from typing import Any

import pytest
from deployment_apps import accuracies, converted
from deployment_harness import Deployment, Federation, Simulation
from installation import NO_HOME, Installation, hand_over

NODES = 6
CHANCE = 0.1


def travelling(engine: type[Federation], installation: Installation) -> Any:
    """The engine, started by a user without a home who has the wheel."""

    class Travelling(engine):  # type: ignore[misc,valid-type]
        programs, whose = installation.programs, installation.whose
        surroundings = installation.surroundings

        def start_superlink(self, *options: str) -> None:
            self.environment["HOME"] = NO_HOME
            hand_over(self.folder, self.whose)
            super().start_superlink(*options)

    return Travelling


@pytest.mark.journey
@pytest.mark.parametrize("engine", [Simulation, Deployment])
def test_the_converted_quickstart(
    engine: type[Federation], installation: Installation, figures: dict[str, Any]
) -> None:
    """Short form: tests/flower/test_deployment_howto.py has it on the simulation engine, in `make test`."""
    with travelling(engine, installation).running(NODES) as federation:
        app = converted(federation.folder / "work")
        hand_over(app, federation.whose)
        federation.start_run(app, "num-server-rounds=3 buffer-size=3 local-epochs=5")
        learned = accuracies(federation.finish_run())
    figures["accuracy"] = list(learned.values())
    assert list(learned) == [0, 1, 2, 3]
    assert learned[3] > max(3 * CHANCE, learned[0])
