"""Commands answer in every word what they answered when the record was made.

`scripts/documents.py check` compares all of it and prints each difference by its path.
"""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from shardwise import load_plan, save_plan
from shardwise.models import load_model
from shardwise.plans import ServePlan, TrainPlan, is_of

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import documents  # noqa: E402

QUICK = ("hw show", "model show", "shard", "plan show", "export", "book rule")
PLANS = sorted((Path(__file__).parent / "plans").glob("*.yaml"))


def checked(*words) -> subprocess.CompletedProcess:
    """The check, in a process of its own: it stops clocks and keeps searches."""
    command = [sys.executable, "scripts/documents.py", "check", "--jobs", "1", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_five_requests_answer_as_before():
    kinds = [word for kind in QUICK for word in ("--kind", kind)]
    done = checked(*kinds, "--sample", "5")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("part", range(1, 13))
def test_all_requests_answer_as_before(part):
    done = checked("--part", f"{part}/12")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_record_is_of_these_requests():
    kept = documents.golden.read(documents.DOCUMENTS)["answers"]
    rows, _ = documents.requests()
    assert list(kept) == [documents.name_of(row) for row in rows]
    for row in rows:
        said = kept[documents.name_of(row)]
        assert tuple(said) == tuple(row.get("views", documents.VIEWS))
        assert {one["code"] for one in said.values()} == {row.get("code", 0)}
    assert len(rows) >= 120
    assert documents.DOCUMENTS.stat().st_size < 1_500_000


ELSEWHERE = {
    "train": {
        *("--coordinator", "--init", "--process", "--processes", "--profile", "--resume"),
        "--tokenizer",
    },
    "compare": {"--args", "--capture", "--mesh", "--no-cache"},
    "explain": {"--no-cache", "--against", "--fail-over", "--issue"},
    "profile": {"--out"},
    "calibrate": {"--api-key", "--key-in-clear"},
    "bench serve": {"--api-key", "--key-in-clear"},
}
"""Options that no request has: those of several processes, of a run before, or of a
key, and those that change no document."""
VIEWED = {"--json", "--csv", "--force", "-q", "--quiet", "-v", "--verbose", "--brief"}
VIEWED |= set(documents.MORE)


def test_every_option_of_every_command_occurs():
    rows, _ = documents.requests()
    for name, options in documents.commands().items():
        if "--json" in options:
            used = {word for row in rows if row["kind"] == name for word in row["words"]}
            assert used, name
            left = {option for option in options - used - VIEWED if option.startswith("-")}
            assert left == ELSEWHERE.get(name, set()), name


BEFORE = {"a": 1.0, "b": ["x"], "page": "1.5 s\nmesh fsdp=8\n"}


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        (BEFORE, []),
        (BEFORE | {"a": 1.0 + 1e-11}, []),
        (BEFORE | {"a": 1.0 + 1e-8}, [".a: 1.0 -> 1.00000001"]),
        (BEFORE | {"a": 1}, [".a: 1.0 -> 1"]),
        (BEFORE | {"c": 2}, [".c: no such key -> 2"]),
        ({"a": 1.0, "page": BEFORE["page"]}, [".b: ['x'] -> no such key"]),
        (BEFORE | {"b": ["x", "y"]}, [".b: 1 entries -> 2"]),
        (BEFORE | {"b": ["z"]}, [".b[0]: 'x' -> 'z'"]),
        (BEFORE | {"page": "1.5 s\nmesh fsdp=4\n"}, [".page:2: 'mesh fsdp=8' -> 'mesh fsdp=4'"]),
        (BEFORE | {"page": "1.5 s\nmesh fsdp=8"}, [".page: the end of its last line"]),
    ],
)
def test_every_difference_is_a_line(after, lines):
    assert list(documents.differences(BEFORE, after)) == lines


def test_what_is_measured_is_masked_and_nothing_else():
    doc = {"result": {"p50_ms": 1.25, "count": 3, "date": "20261129-101010"}}
    assert documents.masked(doc, ["result.*_ms", "result.date"]) == {
        "result": {"p50_ms": "float", "count": 3, "date": "#"}
    }
    assert documents.digits("mean   1.25 ms  --  8%") == "mean # #%"


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_plan_files_of_before_are_read_and_written_as_before(path, tmp_path):
    plan = load_plan(path)
    save_plan(plan, tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == path.read_text()
    assert is_of(plan.model_hash, load_model(plan.model))
    assert isinstance(plan, ServePlan if path.stem == "serve" else TrainPlan)


def test_a_file_without_fields_that_came_later_is_the_same_plan():
    folder = PLANS[0].parent
    before, now = folder / "former" / "serve.yaml", folder / "serve.yaml"
    assert "graphs" not in before.read_text()
    assert "graphs" in now.read_text()
    assert load_plan(before) == load_plan(now)


def test_the_plan_files_have_many_fields():
    assert [path.stem for path in PLANS] == ["many-fields", "serve", "train"]
    plan = load_plan(PLANS[0])
    assert isinstance(plan, TrainPlan)
    usual = TrainPlan(**{name: getattr(plan, name) for name in NEEDED})
    changed = {f.name for f in fields(plan) if getattr(plan, f.name) != getattr(usual, f.name)}
    assert len(changed) >= 15, changed


NEEDED = ("model", "model_hash", "slice", "mesh", "box", "global_batch_sequences")
NEEDED += ("sequence_length", "microbatches", "layers_per_stage")
