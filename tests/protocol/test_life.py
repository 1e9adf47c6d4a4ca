"""The tables of a mask's life: complete, without dead ends, and the only way a machine moves."""

import sys
from pathlib import Path

import pytest
from parties import USERS, deal, intercept, make_federation, one_round, submit

from basecagg.errors import LocalProtocolError
from basecagg.protocol import life

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from diagrams import source_of

TABLES = {
    "contributor": life.CONTRIBUTOR,
    "holder": life.HOLDER,
    "server": life.SERVER,
    "sealing key": life.SEALING_KEY,
    "person": life.PERSON,
    "participant": life.PARTICIPANT,
}
ALL = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


def reachable(table):
    found, todo = set(), [next(iter(table))]
    while todo:
        state = todo.pop()
        if state not in found:
            found.add(state)
            todo += table.get(state, {}).values()
    return found


@ALL
def test_every_state_can_be_reached(table):
    assert set(table) <= reachable(table)


@pytest.mark.parametrize(
    "table", [table for name, table in TABLES.items() if name != "participant"]
)
def test_every_life_ends(table):
    """From everywhere there is a way to a final state, and no way back to an earlier one but staying.

    Only a participant goes from epoch to epoch: what ends are its keys. And an update that was returned may
    come again, until its mask expires.
    """
    order = list(table)
    for state, steps in table.items():
        assert steps
        for target in set(steps.values()) - ({"parked"} if state == "returned" else set()):
            assert target not in table or order.index(target) >= order.index(state)


@ALL
def test_no_step_leads_from_used_up_to_usable(table):
    usable = {"held", "endorsed", "dealt", "parked", "ready", "buffered", "requested"}
    over = {"spent", "closed", "expired", "opened", "burned", "refused", "uploaded"}
    for state in over & set(table):
        assert not usable & set(table[state].values())


@ALL
def test_anything_else_is_an_error(table):
    events = {event for steps in table.values() for event in steps} | {"nonsense"}
    for state in {*reachable(table), "nonsense"}:
        for event in events:
            allowed = life.allows(table, state, event)
            assert allowed == (event in table.get(state, {}))
            if allowed:
                assert life.after(table, state, event) == table[state][event]
            else:
                with pytest.raises(LocalProtocolError, match="is not possible"):
                    life.after(table, state, event)


@ALL
def test_the_diagram_shows_every_step_and_every_end(table):
    lines = source_of(table).splitlines()
    steps = [(s, t, e) for s, row in table.items() for e, t in row.items()]
    for state, target, event in steps:
        assert f"    {state} --> {target} : {event}" in lines
    finals = reachable(table) - set(table)
    assert {line.split()[0] for line in lines if line.endswith("--> [*]")} == finals
    assert len(lines) == 2 + len(steps) + len(finals)


@ALL
def test_the_documentation_shows_this_table(table):
    """So no step is added, changed or taken away without a look at the page."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "mask-life.md"
    assert f"```mermaid\n{source_of(table)}```" in page.read_text("utf-8")


def test_machines_are_in_states_of_their_tables():
    federation = make_federation()
    seen = {"contributor": set(), "holder": set(), "server": set()}

    def look():
        for name in USERS:
            seen["contributor"] |= set(federation.contributor(name).states().values())
            seen["holder"] |= set(federation.holder(name).states().values())
        masks = federation.server.opening.mailroom._masks.values()
        seen["server"] |= {mask.state for mask in masks}

    federation.network.observers.append(lambda letter: look())
    one_round(federation)
    intercept(federation, "user-0")
    deal(federation, "user-1")
    look()
    submit(federation, "user-1", base=7)
    federation.network.run()
    look()
    assert seen["contributor"] == {"dealt", "ready", "uploaded"}
    assert seen["holder"] == {"held", "endorsed", "spent", "closed"}
    assert seen["server"] == {"dealt", "buffered", "requested", "opened", "refused"}
    for name, states in seen.items():
        assert states <= set(TABLES[name])
