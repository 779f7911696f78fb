"""The records of what the programs' own parsers took: their form, and that today's exports write
no flag that a program does not know. `scripts/check_exports.py` makes them."""

import hashlib
import json
import re
import sys
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import exports  # noqa: E402
import exports_serving  # noqa: E402
import exports_trainer  # noqa: E402

from shardwise.planner.export.known_flags import known_flags  # noqa: E402

CHECKED = json.loads(exports.CHECKED.read_text())
FLAGS = known_flags()
TABLE = json.loads(exports.TABLE.read_text())
ROWS = [row for row in TABLE["rows"] if "plan" in row]
SERVED = [row for row in TABLE["serving"] if "plan" in row]
PROGRAMS = ("maxtext", "megatron", "torchtitan")
TRAINERS = ("trl", "axolotl", "deepspeed")
SERVERS = ("k8s", "sglang", "skypilot", "vllm")


@pytest.mark.parametrize("program", PROGRAMS + SERVERS + TRAINERS)
def test_a_record_says_what_was_checked_when_and_that_all_was_taken(program):
    record = CHECKED[program]
    assert re.fullmatch(r"\d+\.\d+\.\d+", record["version"])
    assert date.fromisoformat(record["date"]) >= date(2026, 11, 23)
    assert len(record["files"]) >= 7
    assert set(FLAGS[program]) == {"version", "date", "flags"}
    for name, found in record["files"].items():
        assert re.fullmatch(r"[0-9a-f]{64}", name)
        assert found["accepted"], found
        assert found["parameters"] in (None, found["ours"]), found
        assert {"model", "slice", "error", "builder"} <= set(found)


def flags_of(program: str, text: str) -> set[str]:
    """What an export sets, as the program's own names."""
    plain = exports.stripped(text)
    if program == "torchtitan":
        fields = re.findall(r"config\.(\w+\.\w+) = ", plain)
        return {field for field in fields if "." in field}
    return set(re.findall(r"(?<=\s)(--[\w-]+)" if program == "megatron" else r"(\w+)=", plain))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['slice']}")
def test_every_flag_that_is_written_is_one_that_the_program_knows(row):
    program = row["software"]
    text = exports.text_of(exports.read_plan(row))
    launcher = {"--nnodes", "--nproc-per-node", "CUDA_DEVICE_MAX_CONNECTIONS"}
    assert flags_of(program, text) - launcher <= set(FLAGS[program]["flags"])


@pytest.mark.parametrize("program", TRAINERS)
def test_the_files_of_a_trainer_are_those_that_were_taken(program):
    """By their hash, so that a changed file is checked again."""
    names = [
        hashlib.sha256(text.encode()).hexdigest() for text, _ in exports_trainer.texts(program)
    ]
    assert set(names) == set(CHECKED[program]["files"])
    assert len(names) >= 9


def test_the_table_has_ten_models_on_six_slices_all_exported_and_read_back():
    usual = [row for row in TABLE["rows"] if not row.get("asked")]
    assert {(r["model"], r["slice"]) for r in usual} == {
        (model, on) for model in exports.MODELS for on in exports.SLICES
    }
    assert not [r for r in usual if "refused" in r]
    assert not [(r["model"], r["slice"], r["lost"]) for r in usual if r.get("lost")]


def test_the_page_is_made_of_the_table():
    assert exports.PAGE.read_text() == exports.page(TABLE, CHECKED)


def test_serving_has_five_models_on_six_slices_all_exported_and_read_back():
    assert {(r["model"], r["slice"], r["pools"]) for r in TABLE["serving"]} == {
        (r["model"], r["slice"], r["pools"]) for r in exports_serving.asked(exports.SLICES)
    }
    assert [r for r in TABLE["serving"] if r.get("lost") != {}] == []


@pytest.mark.parametrize("row", SERVED, ids=lambda row: f"{row['model']}-{row['slice']}")
def test_every_flag_of_a_server_is_one_that_it_knows(row):
    plan = exports_serving.read_plan(row)
    text = exports.stripped(exports_serving.text_of(plan, plan.engine))
    ours = {"--headless"}  # echoed by the shell
    assert set(re.findall(r"(--[\w-]+)", text)) - ours <= set(FLAGS[plan.engine]["flags"])


def test_the_very_scripts_and_manifests_of_the_table_were_taken():
    """By their hash, so that a changed file is checked again."""
    for row in SERVED:
        plan = exports_serving.read_plan(row)
        for target in (plan.engine, *exports_serving.DEPLOYED):
            if target in row["elsewhere"] and row["elsewhere"][target]:
                continue
            text = exports_serving.text_of(plan, target)
            name = hashlib.sha256(text.encode()).hexdigest()
            assert CHECKED[target]["files"][name]["accepted"], (row["model"], row["slice"], target)
