#!/usr/bin/env python3
"""What fewer bits do to a small trained model: perplexity by the dtypes of weights and cache.

    python scripts/perplexity.py FOLDER [--text DIR] [--steps 300]

A byte-level Llama of 3 million parameters is trained in FOLDER by `shardwise train` on the texts
below DIR (default: the source of Python's standard library), one file in twenty left out. The
engine then answers held-out windows with the logprobs of their tokens, as its steps compute them,
for every pair of dtypes in PAIRS. docs/lab/perplexity.json has the figures, docs/serving.md their
table. What is there is not done again: a trained model is kept in FOLDER, a stopped training goes
on, and rows of the same model stay.
"""

import argparse
import hashlib
import json
import math
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from made import made, table

from shardwise.runtime.engine.generation import Sampling
from shardwise.runtime.engine.opening import EngineSettings, open_engine

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "docs" / "lab" / "perplexity.json", ROOT / "docs" / "serving.md"
MARKS = "<!-- perplexity: scripts/perplexity.py -->", "<!-- end of perplexity -->"
PAIRS = (
    *(("f32", "f32"), ("bf16", "bf16"), ("int8", "f32"), ("fp8", "f32"), ("int4", "f32")),
    *(("f32", "int8"), ("f32", "fp8"), ("int8", "int8"), ("int4", "fp8")),
)
"""Dtypes of weights and of the cache."""
WINDOW, WINDOWS, HELD_OUT = 256, 192, 20
PLAN = """kind: train
model: model/config.json
slice: v5e:1x1
mesh: {fsdp: 1}
batch: 16seq
length: 256
dtypes: {param: f32, compute: f32}
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 257,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def main(words: Sequence[str] | None = None) -> None:
    """Train, ask and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", type=Path, default=Path(sysconfig.get_paths()["stdlib"]))
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(words)
    held_out = write_texts(options.folder, options.text)
    trained = train(options.folder, options.steps)
    about = {
        "steps": options.steps,
        "tokens": WINDOW * WINDOWS,
        "weights": hashlib.sha256((trained / "model.safetensors").read_bytes()).hexdigest()[:16],
    }
    rows = _known(about)
    for weights, cache in PAIRS:
        if not any((row["weights"], row["cache"]) == (weights, cache) for row in rows):
            found = perplexity(trained, held_out, weights, cache)
            rows.append({"weights": weights, "cache": cache, "perplexity": found})
            print(f"weights {weights}, cache {cache}: {found:.4f} a byte", flush=True)
            record = {"made": made(("jax",)), "model": about, "rows": rows}
            RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    write_page(json.loads(RECORD.read_text(encoding="utf-8")))


def write_texts(folder: Path, source: Path) -> list[bytes]:
    """The texts to train on, in a file of the folder, and windows of those left out."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = sorted(p for p in source.rglob("*") if p.suffix in {".py", ".md", ".txt", ".rst"})
    paths = [p for p in paths if not {"site-packages", "test", "tests"} & set(p.parts)]
    texts = [path.read_bytes() for path in paths]
    learned = b"\n".join(text for i, text in enumerate(texts) if i % HELD_OUT)
    (folder / "text.txt").write_bytes(learned.decode("utf-8", "replace").encode())
    others = b"\n".join(texts[::HELD_OUT])
    most = len(others) // WINDOW
    if most < WINDOWS:
        sys.exit(f"{source} has too little text: {most} windows of {WINDOW} bytes are left out")
    starts = np.linspace(0, most - 1, WINDOWS).astype(int) * WINDOW
    return [others[start : start + WINDOW] for start in starts]


def train(folder: Path, steps: int) -> Path:
    """The trained model, of which a stopped training goes on."""
    model, trained = folder / "model", folder / f"trained-{steps}"
    if (trained / "model.safetensors").exists():
        return trained
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "plan.yaml").write_text(PLAN, encoding="utf-8")
    run = folder / f"run-{steps}"
    asked = ["train", "plan.yaml", "--data", "text.txt", "--steps", str(steps), "--out", run.name]
    asked += [
        "--lr",
        "2e-3",
        "--warmup",
        str(min(20, steps // 10)),
        "--save-every",
        "100",
        "--save-hf",
        trained.name,
    ]
    asked += ["--resume"] if run.exists() else []
    subprocess.run([sys.executable, "-m", "shardwise", *asked], cwd=folder, check=True)
    return trained


def perplexity(folder: Path, windows: Sequence[bytes], weights: str, cache: str) -> float:
    """exp of the mean negative logprob of every byte of the windows but the first of each."""
    settings = EngineSettings(
        batch=8, budget=WINDOW, most_tokens=WINDOW + 16, pages=256, weights=weights, cache=cache
    )
    engine = open_engine(folder, settings)
    asked = Sampling(max_tokens=1, temperature=0, prompt_logprobs=0)
    answers = [engine.add(list(window), asked)[0] for window in windows]
    while not engine.idle:
        engine.step()
    found = [said.logprob for one in answers for said in one.prompt_logprobs if said is not None]
    assert len(found) == len(windows) * (WINDOW - 1)
    return math.exp(-math.fsum(found) / len(found))


def _known(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the record that are of this model."""
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return list(record["rows"]) if record.get("model") == about else []


def lines_of(record: Mapping[str, Any]) -> str:
    """The table of docs/serving.md."""
    whole = record["rows"][0]["perplexity"]
    rows = [
        [row["weights"], row["cache"], f"{row['perplexity']:.4f}", f"{change(row, whole):+.3%}"]
        for row in record["rows"]
    ]
    return table(["weights", "cache", "perplexity of a byte", "change"], rows)


def change(row: Mapping[str, Any], whole: float) -> float:
    """By what share of that of f32 a row's perplexity is higher."""
    return row["perplexity"] / whole - 1


def write_page(record: Mapping[str, Any]) -> None:
    """Put the table between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    start, end = (text.index(mark) for mark in MARKS)
    body = f"{MARKS[0]}\n\n{lines_of(record)}\n\n"
    PAGE.write_text(text[:start] + body + text[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
