"""The measurement of the service runs: a small federation as real processes, and the bare stack beside it."""

from __future__ import annotations

import asyncio

from benchmarks import service_baseline, service_load

CASE = {"holders": 6, "contributors": 8, "buffer": 4, "d": 40, "warm": 4, "updates": 8}


def test_the_load_meets_no_error_and_its_traffic_is_repeated_bare(tmp_path):
    figures = asyncio.run(service_load.load(tmp_path, CASE))
    assert figures["errors"] == []
    assert figures["updates"] >= CASE["updates"]
    assert figures["server_ms_per_update"] > 0
    traffic = figures["traffic_per_update"]
    assert {"Shipment", "Receipt", "Endorsement", "Answer", "mailbox down"} <= set(traffic)
    bare = asyncio.run(service_baseline.measure(traffic, 0.5))
    assert bare["server_ms_per_update"] > 0


def test_a_step_of_the_bare_stack_has_the_mean_bytes_of_its_kind():
    counted = {
        "Upload": 1.0,
        "Upload up": 400.0,
        "mailbox": 0.5,
        "mailbox down": 60.0,
        "put off": 2,
    }
    assert service_baseline.script(counted) == [("Upload", 1.0, 400, 0), ("mailbox", 0.5, 0, 120)]
