"""Steps of servers in every layout of their caches, compiled (`scripts/kept_servers.py`): each
device holds of the cache what the plan says, and what moves is what the plan lists."""

import gzip
import json
import re
import sys
from math import prod
from pathlib import Path

import pytest

from shardwise.commands.program.compiling import predicted_of, said_of
from shardwise.models import load_model
from shardwise.profiler.collectives.lines import lines_of, read_lines
from shardwise.profiler.collectives.rules import compare

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from kept_servers import FOLDER, PROGRAMS, lowered, plan, priced

PAGES = re.compile(r'(bf16|f32|s8)\[([\d,]+)\]\S* parameter\(\d+\).*op_name="state\.pages\[\d+\]')
OTHERS = {"sequence", "sequence_of_two_pools", "experts"}
"""Layouts of which the plan lists what other servers move: rows to sequences and back, where ours
combines parts of answers; tokens to experts, where ours gathers them (docs/lab/log.md)."""
LEFT = 0.02
"""Of the planned bytes: what may be left of steps as small as these."""
BYTES = {"bf16": 2, "f32": 4, "s8": 1}


def text_of(program):
    return gzip.decompress((FOLDER / f"{program}.hlo.gz").read_bytes()).decode()


def cache_bytes(hlo):
    """Of the arguments of a program that are pages, on one device."""
    entry = hlo[hlo.index("\nENTRY ") :]
    found = PAGES.findall(entry)
    return sum(BYTES[dtype] * prod(map(int, dims.split(","))) for dtype, dims in found)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_device_holds_its_part_of_the_cache(program):
    name, phase = PROGRAMS[program]
    planned = predicted_of(priced(name), phase).memory_by_kind["kv"]
    if phase == "prefill" and "sequence" in name:
        planned /= 2  # the plan has the prompt's pages whole, the engine cuts their places
    assert cache_bytes(text_of(program)) == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize("program", [name for name in PROGRAMS if not OTHERS & {*PROGRAMS[name]}])
def test_what_moves_is_what_the_plan_lists(program):
    name, phase = PROGRAMS[program]
    one, (work, _) = plan(name), said_of(priced(name), phase)
    planned = lines_of(work, one)
    found = compare(one, load_model(one.model), planned, read_lines(text_of(program), one))
    assert found.left <= LEFT * sum(line.total for line in planned)


@pytest.mark.slow
def test_what_is_lowered_now_is_what_was_compiled():
    rows = json.loads((FOLDER / "index.json").read_text())["rows"]
    made = {row["name"]: row["lowered"] for row in rows}
    assert made == lowered(), "run `python scripts/kept_servers.py`"
