"""Published TPU runs compiled: what a row's program is, what prices it, and the committed table."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from shardwise.evidence.training.runs import measured_seconds, read_run
from shardwise.evidence.training.table import PUBLISHED, read_table, row_of
from shardwise.hardware import Torus, load_chip, parse_slice
from shardwise.profiler.hlo import module_work, read_module
from shardwise.profiler.timeline import schedule
from shardwise.sharding import Mesh

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from row_programs import before_fit, options_on, row_result

ROWS = {row["id"]: row for row in read_table(PUBLISHED).rows}
TABLE = Path(__file__).parents[3] / "docs" / "lab" / "maxtext.json"
FITTED = ("sustained", "attention", "matmul_ramp")
MEASURED = ("matmul", "hbm", "network", "outer_network")


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "tpu7x"])
def test_no_constant_that_published_runs_shaped(chip):
    piece = parse_slice(f"{chip}:4x4" if chip == "v5e" else f"{chip}:4x4x4")
    fitted, before = piece.chip.efficiency, before_fit(piece).chip.efficiency
    assert {name: getattr(before, name) for name in MEASURED} == {
        name: getattr(fitted, name) for name in MEASURED
    }
    for name in FITTED:
        source = piece.chip.sources[f"efficiency.{name}"]
        assert f"prior {getattr(before, name):g} " in source
    assert (before.sustained, before.attention) == (0.88, 0.45)


def test_constants_without_a_fit_stay():
    piece = parse_slice("v5e:4x4")
    alone = replace(piece, chip=replace(piece.chip, generation=""))
    assert before_fit(alone) == alone


HLO = """HloModule m, is_scheduled=true, num_partitions=256

ENTRY %main () -> bf16[16384,4096] {
  %x = bf16[64,4096]{1,0:T(8,128)(2,1)} parameter(0)
  %y = bf16[16384,4096]{1,0:T(8,128)(2,1)} all-gather(%x), channel_id=1, \
replica_groups=[1,256]<=[256], dimensions={0}
  ROOT %z = bf16[16384,4096]{1,0:T(8,128)(2,1)} negate(%y), backend_config=\
{"window_config":{"estimated_cycles":"1500000"}}
}
"""


def test_a_row_says_where_its_time_goes():
    run = read_run(ROWS["maxtext-v5e-16b-1x256"])
    work = module_work(read_module(HLO), Mesh(tuple(run.plan.mesh.items())))
    found = row_result(run, schedule(work, before_fit(run.piece)))
    assert found["compute_seconds"] == pytest.approx({"elementwise": 1e-3})
    wire = found["network_seconds"]["fsdp"]
    assert found["exposed_seconds"] == {"fsdp": wire}
    assert found["step_seconds"]["expected"] == pytest.approx(1e-3 + wire)
    assert found["error"] == found["step_seconds"]["expected"] / run.measured_seconds - 1


def table():
    return json.loads(TABLE.read_text(encoding="utf-8"))


def test_the_table_is_whole_and_its_summary_is_that_of_its_rows():
    doc = table()
    rows = doc["rows"]
    chips = dict.fromkeys(row["chip"] for row in rows)
    assert doc["options"] == {chip: options_on(chip) for chip in chips}
    assert len({row["id"] for row in rows}) == len(rows) == doc["summary"]["n"] >= 12
    assert doc["summary"]["median_abs_error"] == median(abs(row["error"]) for row in rows)
    assert {row["chip"] for row in rows} >= {"v4", "v5e", "v5p"}
    assert not {row["id"] for row in rows} & {left["id"] for left in doc["left_out"]}
    assert all(left["reason"] for left in doc["left_out"])
    for row in rows:
        times = row["step_seconds"]
        assert row["error"] == pytest.approx(times["expected"] / row["published_seconds"] - 1)
        assert times["lower"] <= times["expected"] <= times["upper"]
        parts = sum(row["compute_seconds"].values()) + sum(row["exposed_seconds"].values())
        assert parts == pytest.approx(times["expected"], rel=0.02)


def test_the_table_is_of_published_rows_as_they_stand():
    for row in table()["rows"]:
        run = read_run(ROWS[row["id"]])
        assert isinstance(load_chip(row["chip"]).network, Torus)
        assert (row["slice"], row["mesh"]) == (str(run.piece), dict(run.plan.mesh))
        published = measured_seconds(row_of(ROWS[row["id"]]), run.cfg)
        assert row["published_seconds"] == pytest.approx(published, rel=1e-5)


def test_the_page_is_of_the_tables_date():
    assert TABLE.with_suffix(".md").read_text(encoding="utf-8").count(table()["date"]) >= 1
