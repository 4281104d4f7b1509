"""What is perceived, on scenes small enough to write down."""

from __future__ import annotations

import numpy as np
import pytest

from wmrt.envs.state import ACTIONS, GROUPS, Car, highway_schema, perceive


def test_straddling_vehicle_counts_in_both_lanes():
    ego = Car(x=0.0, y=4.0, vx=25.0, heading=0.0, lane=1)
    state = perceive(ego, 25.0, [(20.0, 2.0, 22.0)])
    assert (state["front_gap"], state["front_dv"]) == (20.0, -3.0)
    assert (state["left_front_gap"], state["left_front_dv"]) == (20.0, -3.0)
    assert state["right_front_gap"] == 100.0


@pytest.mark.parametrize(("y", "inside"), [(1.0, True), (0.99, False), (-2.0, False)])
def test_a_vehicle_is_in_a_lane_when_any_part_of_it_is(y, inside):
    ego = Car(x=0.0, y=4.0, vx=25.0, heading=0.0, lane=1)
    state = perceive(ego, 25.0, [(20.0, y, 22.0)])
    assert (state["front_gap"] == 20.0) == inside


def test_nearest_in_front_and_behind():
    ego = Car(x=100.0, y=0.0, vx=20.0, heading=0.0, lane=0)
    others = [(130.0, 0.0, 21.0), (112.0, 0.0, 22.0), (60.0, 0.0, 23.0), (95.0, 0.0, 24.0)]
    state = perceive(ego, 20.0, others)
    assert (state["front_gap"], state["front_dv"]) == (12.0, 2.0)
    assert (state["rear_gap"], state["rear_dv"]) == (5.0, 4.0)
    assert state["lane"] == "left"
    assert (state["left_rear_gap"], state["left_rear_dv"]) == (0.0, 0.0)


def test_range_is_100_m():
    ego = Car(x=0.0, y=8.0, vx=20.0, heading=0.0, lane=2)
    assert perceive(ego, 20.0, [(100.0, 8.0, 10.0)])["front_dv"] == 0.0
    assert perceive(ego, 20.0, [(99.9, 8.0, 10.0)])["front_dv"] == -10.0


@pytest.mark.parametrize("group", GROUPS)
def test_hidden_group_is_unknown_and_nothing_else(group):
    ego = Car(x=0.0, y=4.0, vx=25.0, heading=0.0, lane=1)
    others = [(d, lane * 4.0, 22.0) for d in (20.0, -20.0) for lane in range(3)]
    seen, hidden = perceive(ego, 25.0, others), perceive(ego, 25.0, others, {group})
    changed = {name for name in seen if seen[name] != hidden[name]}
    assert changed == {f"{group}_gap", f"{group}_dv"}
    assert {hidden[name] for name in changed} == {None}


def test_schema_and_actions():
    schema = highway_schema()
    assert schema.neutral == (0.0, 0.0) and schema.max_unknown == 12
    assert [c.field for c in schema.columns if c.required] == [
        "ego_speed",
        "lane_offset",
        "heading",
    ]
    assert ACTIONS.names == ("steering", "acceleration")
    np.testing.assert_allclose([d.max_delta(0.1) for d in ACTIONS.dims], [(0.5, 0.5), (0.3, 0.6)])
