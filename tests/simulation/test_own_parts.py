"""What the page "Add your own" adds works as the papers say, and survives a crash: the page's own code."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_config, tiny_task

from basecagg import SimulationConfig, simulate
from basecagg.errors import DataError, ParameterError
from basecagg.simulation.build import build
from basecagg.simulation.simulate import SimulationResult, play

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "add-your-own.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)


@pytest.fixture
def page(tables_as_they_were: None) -> dict[str, Any]:
    """All that the page defines, with its entries in the tables; its runs are the business of `test_docs`."""
    names: dict[str, Any] = {}
    text = "\n".join(block for block in BLOCKS if "simulate(" not in block)
    linecache.cache[PAGE.name] = len(text), None, text.splitlines(keepends=True), PAGE.name
    exec(compile(text, PAGE.name, "exec"), names)
    return names


pytestmark = pytest.mark.usefixtures("page")


def test_nothing_takes_more_than_40_lines() -> None:
    assert len(BLOCKS) >= 14
    assert max(len(block.splitlines()) for block in BLOCKS) <= 40


def run(config: SimulationConfig, **options: Any) -> SimulationResult:
    return simulate(config, task=tiny_task(), **options)


# --- clients --------------------------------------------------------------------------------------


def test_fedprox_with_a_large_mu_stays_where_it_began(page: dict[str, Any]) -> None:
    first = build(tiny_config(), tiny_task(), {}).model

    def way(mu: float | None) -> Any:
        page["CLIENTS"]["pulled"] = lambda settings: page["FedProx"](mu)
        client = "plain" if mu is None else "pulled"
        config = tiny_config(client=client, local_rate=0.1, local_steps=20, versions=1)
        return run(config).model - first

    assert np.array_equal(way(0.0), way(None))
    assert np.linalg.norm(way(5.0)) < 0.5 * np.linalg.norm(way(0.0))


@pytest.mark.parametrize("method", ["fedavg", "basecagg"])
def test_scaffolds_common_variate_is_the_mean_of_all_users(method: str) -> None:
    """Nothing is stale or lost here, so c = Σ c_i/N holds exactly but for rounding."""
    config = tiny_config(
        method,
        client="scaffold",
        schedule="synchronous",
        concurrency=4,
        versions=6,
        local_rate=0.1,
        global_rate=0.7,
    )
    parts = build(config, tiny_task(), {})
    play(parts)
    parts.workshop.close()
    memories = [memory["own"] for memory in parts.workshop.memories.values()]
    common = parts.schedule.model[parts.model.size :]
    assert common.size == parts.logbook.scratch.num_weights
    assert np.abs(common).max() > 0.01
    assert np.abs(common - np.sum(memories, axis=0) / config.users).max() < 1e-4


def test_scaffold_learns_more_from_uneven_users_than_plain_training_does() -> None:
    uneven = {"method": "fedbuff", "users": 20, "buffer_size": 5, "versions": 30}
    uneven |= {"partition": "shards", "local_rate": 0.05, "evaluate_every": 30}
    plain = simulate(SimulationConfig(**uneven))
    better = simulate(SimulationConfig(client="scaffold", **uneven))
    assert better.score > plain.score + 0.03
    assert better.model.shape == plain.model.shape  # what travelled behind it is no part of it


def test_a_client_and_a_protection_know_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    from basecagg.baselines.local_noise import AtUser
    from basecagg.learning import CLIENTS, Client
    from basecagg.simulation.protections import PROTECTIONS, Protection

    trained, protected = [], []

    class Curious(Client):
        def train(self, work: Any) -> float:
            trained.append((work.user, sorted(work.examples.tolist())))
            return super().train(work)

    class Noting(AtUser):
        def protect(self, user: int, update: Any, randomness: Any) -> Any:
            protected.append(user)
            return update

    monkeypatch.setitem(CLIENTS, "curious", lambda settings: Curious())
    noting = Protection(saw="all.", at_user=lambda settings: Noting())
    monkeypatch.setitem(PROTECTIONS, "noting", noting)
    config = tiny_config(client="curious", protection="noting")
    parts = build(config, tiny_task(), {})
    play(parts)
    assert {user for user, _ in trained} >= set(protected)
    assert len(set(protected)) > 3
    for user, examples in trained:
        assert examples == parts.workshop.examples[user].tolist()


@pytest.mark.parametrize("name", ["client", "local_optimiser", "clock", "partition", "schedule"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises((DataError, ParameterError), match="nobody's"):
        run(tiny_config(**{name: "nobody's"}))


def test_records_are_clipped_in_plain_training_alone() -> None:
    private = {"unit": "record", "noise": 1.0, "local_steps": 1, "sampling_rate": 0.5}
    with pytest.raises(ParameterError, match="client = 'fedprox'"):
        tiny_config("basecagg-dp", client="fedprox", **private)


# --- whatever is kept survives a crash -------------------------------------------------------------


def stop_at(version: int) -> Any:
    def progress(record: Any) -> None:
        if record.version == version:
            raise KeyboardInterrupt

    return progress


OWN = [
    {"client": "scaffold"},
    {"client": "scaffold", "method": "basecagg"},
    {"protection": "top-k"},
    {"schedule": "in-turn", "clock": "hourly"},
    {"clock": "geometric", "max_staleness": 3},
    {"local_optimiser": "momentum", "partition": "by-size"},
]


@pytest.mark.parametrize("own", OWN, ids=lambda own: "+".join(map(str, own.values())))
def test_a_resumed_run_ends_as_if_it_had_not_stopped(own: dict[str, Any], tmp_path: Path) -> None:
    config = tiny_config(**{"versions": 7, "checkpoint_every": 2, "local_rate": 0.05} | own)
    whole = run(config)
    with pytest.raises(KeyboardInterrupt):
        run(config, folder=tmp_path / "run", progress=stop_at(5))
    resumed = run(config, folder=tmp_path / "run", resume=True)
    assert np.array_equal(resumed.model, whole.model)
    assert resumed.versions == whole.versions


# --- the others ------------------------------------------------------------------------------------


def test_in_turn_nobody_trains_twice_more_than_another() -> None:
    config = tiny_config(schedule="in-turn", versions=12)
    parts = build(config, tiny_task(), {})
    play(parts)
    assert max(parts.clock.trainings) - min(parts.clock.trainings) <= 2
    other = build(tiny_config(versions=12), tiny_task(), {})
    play(other)
    assert max(other.clock.trainings) - min(other.clock.trainings) > 2  # the control


def test_masks_refuse_a_schedule_of_ones_own_by_its_kind(
    page: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_turn = page["SCHEDULES"]["in-turn"]
    for kind, protection in (("buffered", "secagg"), ("immediate", "basecagg")):
        mine = page["Timetable"](make=in_turn.make, kind=kind)
        monkeypatch.setitem(page["SCHEDULES"], "mine", mine)
        with pytest.raises(ParameterError, match=f"'{protection}' cannot protect the mine"):
            tiny_config(schedule="mine", protection=protection)


def test_top_k_is_charged_by_its_bytes_and_keeps_the_rest(page: dict[str, Any]) -> None:
    top = page["TopK"](0.5)
    sent = top.protect(3, np.array([4, -1, 0, 3], np.float32), None)
    assert sent.tolist() == [4, 0, 0, 3]
    assert top.protect(3, np.array([0, -3, 1, 0], np.float32), None).tolist() == [0, -4, 1, 0]
    assert top.protect(4, np.array([0, -3, 1, 0], np.float32), None).tolist() == [0, -3, 1, 0]
    slow = {"up_mbps": 1e-4, "speed": "constant", "dropout": 0.0}
    plain, less = (run(tiny_config(protection=each, **slow)) for each in ("none", "top-k"))
    uploads = [each.totals["bytes"]["PlainUpdate"] for each in (plain, less)]
    size, updates = plain.model.size, plain.totals["updates"]
    assert plain.totals["updates"] == less.totals["updates"]
    assert uploads[0] - uploads[1] == updates * (4 * size - 8 * round(0.1 * size))
    assert less.time < 0.6 * plain.time
    mixed = run(tiny_config("fedasync", protection="top-k"))
    alone = run(tiny_config("fedasync"))
    assert sum(mixed.totals["bytes"].values()) < sum(alone.totals["bytes"].values())


def test_a_clock_may_draw_staleness_by_its_own_law() -> None:
    drawn = {"max_staleness": 3, "versions": 60}
    ages = [
        age
        for clock in ("geometric", "uniform-staleness")
        for age in [
            np.mean(
                [a for v in run(tiny_config(clock=clock, **drawn)).versions for a in v.staleness]
            )
        ]
    ]
    assert ages[0] < ages[1] - 0.4


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_an_optimiser_by_name_is_torchs(optimiser: str) -> None:
    """The weights as one vector, against torch on the layers one by one."""
    from basecagg.learning import LocalTraining, seeded, train_locally

    task = tiny_task()
    model, twin = task.build_model(1), task.build_model(1).module
    training = LocalTraining(
        learning_rate=0.01, optimiser=optimiser, steps=7, batch_size=16, weight_decay=0.1
    )
    update = train_locally(
        task, model, model.vector(), np.arange(48), training, seed=3, user=0
    ).delta
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimiser]
    steps = kind(twin.parameters(), lr=0.01, weight_decay=0.1)
    before = torch.nn.utils.parameters_to_vector(twin.parameters()).detach().clone()
    x, y = task.dataset.train_x, task.dataset.train_y
    with seeded(3):
        batches: Iterator[torch.Tensor] = iter(
            [b for _ in range(3) for b in torch.randperm(48).split(16)][:7]
        )
        for batch in batches:
            steps.zero_grad()
            torch.autograd.backward(task.loss(twin(x[batch]), y[batch]))
            steps.step()
    after = torch.nn.utils.parameters_to_vector(twin.parameters()).detach()
    assert np.abs(update - (before - after).numpy()).max() < 1e-6
    assert np.abs(update).max() > 0.01
