"""Replaying and calibrating on per-request records of live servers.

`vllm_requests.csv` holds the records of vLLM 0.19 with Llama-3.1-8B on two cards, 300 requests of
ShareGPT at 10 per second (casys-kaist/LLMServingSim@5daddb2 bench/examples, MIT; its licence is
beside it). Each server ran with a token budget of 2,048; the pages are ids of 16 prompt tokens.
"""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardwise.commands.run.calibration.endpoint import load
from shardwise.commands.run.calibration.replay import (
    KNOBS,
    Machine,
    RequestLatencies,
    ServedRequest,
    calibrate,
    latencies,
    moved,
    read_records,
    replay,
    values_of,
)
from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.plans import ServePlan, model_hash
from shardwise.roofline.engines import IDEAL_ENGINE, load_engine

TABLE = Path(__file__).parent / "data" / "vllm_requests.csv"
CFG = load_model("llama-3.1-8b")
BATCH = {"rtx4090": 256, "rtxpro6000": 128}
PAGES = {"rtx4090": 2588}
"""From the servers' logs; the other's is counted."""


def machine(chip):
    piece = parse_slice(f"{chip}:1")
    plan = ServePlan(
        model="llama-3.1-8b",
        model_hash=model_hash(CFG),
        slice=f"{chip}:1",
        mesh={},
        box=piece.shape,
        batch=BATCH[chip],
        input_length=857,
        output_length=653,
        prefill_chunk=2048,
    )
    return Machine(
        plan=plan,
        cfg=CFG,
        piece=piece,
        engine=load_engine("vllm"),
        batch=BATCH[chip],
        budget=2048,
        kv_tokens=16 * PAGES.get(chip, 0),
    )


def keys(text):
    found = []
    for part in text.split():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def records(chip):
    with TABLE.open() as file:
        return [
            ServedRequest(
                id=int(row["id"]),
                arrival=float(row[f"{chip}_queued"]),
                prompt=int(row["prompt"]),
                output=int(row["output"]),
                first_token=float(row[f"{chip}_first"]),
                last_token=float(row[f"{chip}_last"]),
                keys=keys(row["pages"]),
            )
            for row in csv.DictReader(file)
        ]


def test_the_records_have_the_published_means():
    """Mean TTFT and E2E as LLMServingSim's summaries print them."""
    found = {chip: latencies(records(chip)) for chip in BATCH}
    assert found["rtx4090"].ttft == pytest.approx(65.4566, abs=1e-3)
    assert found["rtx4090"].e2e == pytest.approx(86.5783, abs=1e-3)
    assert found["rtxpro6000"].ttft == pytest.approx(7.0972, abs=1e-3)
    assert found["rtxpro6000"].e2e_p90 == pytest.approx(35.4507, abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [tuple(BATCH), tuple(BATCH)[::-1]])
def test_calibrated_on_one_card_the_other_is_predicted(one, other):
    """The target: mean ITL, mean and 90th percentile of E2E within 10 %, TTFT within 25 %."""
    calibrated = calibrate(records(one), machine(one))
    own = latencies(replay(records(one), calibrated)).errors(latencies(records(one)))
    assert all(abs(error) <= 0.05 for error in own.values()), own
    measured = records(other)
    there = moved(machine(other), values_of(calibrated))
    errors = latencies(replay(measured, there)).errors(latencies(measured))
    for name in ("itl", "e2e", "e2e_p90"):
        assert abs(errors[name]) <= 0.10, errors
    assert abs(errors["ttft"]) <= 0.25, errors


def test_times_of_known_values_are_found_again():
    """Records made by the simulator itself, from values off their priors, at an easy load. Several
    values explain the same times, so they are only asked to come nearer."""
    start = machine("rtx4090")
    light = [replace(r, arrival=4 * r.arrival, keys=()) for r in records("rtx4090")[:60]]
    true = {**values_of(start), "hbm": 0.9, "sequence_seconds": 5e-5}
    made = replay(light, moved(start, true))
    found = values_of(calibrate(made, start))
    again = latencies(replay(made, moved(start, found))).errors(latencies(made))
    assert all(abs(error) < 0.01 for error in again.values())
    assert abs(found["hbm"] - 0.9) < 0.5 * abs(values_of(start)["hbm"] - 0.9)


@pytest.mark.slow
def test_a_server_unlike_any_of_the_catalogue_is_found_from_nothing():
    """What our server is on a CPU: kernels and sequences that cost a hundred times those of GPUs,
    rates of a fraction. From an engine without times of its own one load tells enough of them for
    the mean step of another, of longer prompts that come faster. (What few steps tell, the rate of
    prompts, stays near its prior, so times to the first token are off by more.)"""
    start = replace(machine("rtx4090"), engine=IDEAL_ENGINE)
    true = {"hbm": 0.2, "sustained": 0.25, "kernel_seconds": 6e-5, "sequence_seconds": 1.5e-3}
    there = moved(start, {**values_of(start), **true})
    one = loaded(load(64, 1.0, 128, 64))
    other = loaded(load(60, 1.5, 256, 32))
    found = calibrate(replay(one, there), start)
    said, took = (latencies(replay(other, each)) for each in (found, there))
    errors, before = said.errors(took), latencies(replay(other, start)).errors(took)
    assert abs(errors["itl"]) < 0.15
    assert abs(errors["e2e"]) < 0.15
    assert before["itl"] < -0.5


def loaded(asks):
    """Requests of a load, before anything is served."""
    return [
        ServedRequest(
            id=ask.id,
            arrival=ask.at,
            prompt=ask.prompt,
            output=ask.output,
            first_token=ask.at,
            last_token=ask.at,
        )
        for ask in asks
    ]


def linked(model):
    """Two cards on PCIe, tensor parallel."""
    cfg, piece = load_model(model), parse_slice("rtx4090:2")
    start = machine("rtx4090")
    plan = replace(
        start.plan,
        model=model,
        model_hash=model_hash(cfg),
        slice="rtx4090:2",
        mesh={"tensor": 2},
        box=piece.shape,
    )
    return replace(start, plan=plan, cfg=cfg, piece=piece, kv_tokens=0)


@pytest.mark.slow
def test_calibrated_over_pcie_another_model_is_predicted():
    """One machine's log carries to another model on it: links of a third of the catalogue's rate
    and hops of three times the engine's are learned from one, and price the other."""
    light = [replace(r, arrival=4 * r.arrival, keys=()) for r in records("rtx4090")[:60]]
    one, other = linked("llama-3.1-8b"), linked("qwen3-4b")
    priors = values_of(one)
    true = {**priors, "network": priors["network"] / 3, "hops": 3 * priors["hops"] + 0.3}
    true["hbm"] = 0.85
    found = values_of(calibrate(replay(light, moved(one, true)), one))
    assert abs(found["network"] - true["network"]) < 0.5 * abs(priors["network"] - true["network"])
    measured = latencies(replay(light, moved(other, true)))
    errors = latencies(replay(light, moved(other, found))).errors(measured)
    before = latencies(replay(light, other)).errors(measured)
    bounds = {name: 0.1 if name.endswith("p90") else 0.05 for name in errors}
    assert all(abs(error) <= bounds[name] for name, error in errors.items()), errors
    assert abs(errors["itl"]) < 0.5 * abs(before["itl"])


def test_a_replay_keeps_arrivals_and_tokens():
    given = records("rtx4090")[:20]
    found = replay(given, machine("rtx4090"))
    first = given[0].arrival
    for before, after in zip(given, found, strict=True):
        assert after.arrival == pytest.approx(before.arrival - first)
        assert (after.prompt, after.output) == (before.prompt, before.output)
        assert after.arrival < after.first_token < after.last_token


def test_latencies_by_hand():
    one = ServedRequest(id=0, arrival=0.0, prompt=10, output=3, first_token=1.0, last_token=2.0)
    two = ServedRequest(id=1, arrival=1.0, prompt=10, output=1, first_token=4.0, last_token=4.0)
    found = latencies([one, two])
    assert found == RequestLatencies(itl=0.5, e2e=2.5, e2e_p90=pytest.approx(2.9), ttft=2.0)
    assert found.errors(replace(found, itl=0.4))["itl"] == pytest.approx(0.25)


def test_values_stay_within_their_bounds():
    for name, knob in KNOBS.items():
        least, most = knob.bounds
        assert least <= values_of(machine("rtx4090"))[name] <= most


def test_a_file_of_records(tmp_path):
    row = {
        "request_id": "bench-7",
        "input_toks": 5,
        "output_toks": 2,
        "queued_ts": 1.5,
        "first_token_ts": 2.0,
        "last_token_ts": 2.25,
    }
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps(row) + "\n")
    [found] = read_records(path)
    assert (found.id, found.ttft, found.e2e, found.tpot) == (7, 0.5, 0.75, 0.25)
    path.write_text(json.dumps({**row, "queued_ts": None}) + "\n")
    with pytest.raises(BadRequest, match="line 1 is not a record"):
        read_records(path)
    for text, said in (
        ('{"a": 1}', "line 1 is not a record of a request: no key 'request_id'; a record is"),
        ("[1]", "line 1 is not a record of a request: it is not a JSON object"),
        ("{", "line 1 is not a record of a request: it is not JSON"),
        (json.dumps({**row, "input_toks": "x"}), "input_toks is 'x'; it must be a whole number"),
        (json.dumps({**row, "queued_ts": float("nan")}), "a number is NaN; numbers must"),
        (json.dumps({**row, "input_toks": float("inf")}), "a number is Infinity"),
        (json.dumps({**row, "first_token_ts": row["queued_ts"] - 1}), "no time may lie before"),
        (json.dumps({**row, "last_token_ts": 1e25}), "last_token_ts is 1e.25; it must be a number"),
        (json.dumps({**row, "output_toks": 0}), "output_toks is 0; it must be a whole number"),
    ):
        path.write_text(text)
        with pytest.raises(BadRequest, match=said):
            read_records(path)
    path.write_text("")
    with pytest.raises(BadRequest, match=r"holds no record; .*last_token_ts \(seconds on one"):
        read_records(path)
    with pytest.raises(BadRequest, match=r"cannot read .*: no such file or directory$"):
        read_records(tmp_path / "missing.jsonl")


def test_a_request_that_cannot_be_served_is_named():
    huge = ServedRequest(
        id=3, arrival=0.0, prompt=50_000, output=2, first_token=1.0, last_token=2.0
    )
    with pytest.raises(BadRequest, match="request 3 of 50000 prompt tokens cannot be served"):
        replay([huge], machine("rtx4090"))
