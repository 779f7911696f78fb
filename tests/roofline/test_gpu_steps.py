"""Our trainer's steps on one GPU: what was measured, against what its constants say."""

import json
import sys
from pathlib import Path
from statistics import median

import pytest

from shardwise.commands.plan_train.train import TrainPlanRequest
from shardwise.models.zoo import hf_config

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import fit_jax

ROOT = Path(__file__).parents[2]


def error(measured, predicted):
    return abs(predicted / measured - 1)


def test_the_page_is_made_of_the_steps_and_holds_left_out():
    """Each step by constants of the others, as the model prices it today."""
    again = fit_jax.gpu_document(fit_jax.on_gpu())
    kept = json.loads((ROOT / "docs" / "lab" / "fit_jax.json").read_text())["gpu"]
    assert again["constants"] == pytest.approx(kept["constants"])
    for now, then in zip(again["rows"], kept["rows"], strict=True):
        assert now["predicted"] == pytest.approx(then["predicted"])
    assert median(error(row["seconds"], row["predicted"]) for row in again["rows"]) <= 0.10


STEPS = (
    ("llama-3.2-1b", None, "h200:1", 4, "none", 0.241),
    ("qwen3-0.6b", None, "h200:1", 8, "none", 0.376),
    ("llama-3.2-1b", None, "h100:1", 4, "none", 0.2657),
    ("llama-3-8b", 8, "h100:1", 4, "block", 0.428),
)
"""Model, layers where not of all, chip, rows of 4,096 tokens, remat and seconds: measured on other
days (docs/lab/log.md, 2026-11-26, on an H100) and by others (on an H200); none is in the fit."""


@pytest.fixture
def errors(tmp_path):
    found = []
    for name, layers, chip, rows, remat, seconds in STEPS:
        model = name
        if layers:
            model = tmp_path / name
            model.mkdir()
            config = {**hf_config(name), "num_hidden_layers": layers}
            (model / "config.json").write_text(json.dumps(config))
        asked = TrainPlanRequest(
            model=str(model),
            on=chip,
            batch=f"{rows}seq",
            seq=4096,
            remat=remat,
            software="jax",
        )
        found.append(error(seconds, asked.answer().result["step_seconds"]["expected"]))
    return found


def test_steps_of_other_days_are_predicted_within_a_tenth(errors):
    assert median(errors) <= 0.10
