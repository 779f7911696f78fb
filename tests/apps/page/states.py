"""States of views for tests: where a control is moved from, and what it is moved to."""

import json
import shutil
from pathlib import Path
from urllib.parse import urlencode

from shardwise.apps.page.controls import Control, written
from shardwise.commands.program.report import SAMPLE

SMALL = {
    "start": {"model": "llama-3.2-1b", "tokens": "1e11", "days": "12"},
    "training": {
        "model": "llama-3-8b",
        "on": "v5p",
        "chips": "16",
        "batch": "262144",
        "beside": "",
    },
    "serving": {"model": "llama-3-8b", "chips": "4", "input": "1024", "output": "64"},
    "simulator": {"requests": "100"},
    "book": {"id": "head.7.appA"},
}
"""Searches and simulations that end soon; a number of which each control changes something."""
SERVED = {"task": "serve it"}
NEEDED = {
    **{("start", name): SERVED for name in ("input", "output", "rate", "ttft", "tpot")},
    ("book", "answer"): {"quiz": "yes"},
    ("book", "hint"): {"quiz": "yes"},
    ("serving", "software"): {"weights": "bf16", "kv": "bf16"},
}
"""What a control of a view needs to take effect."""
TEXTS = {
    "expression": "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]",
    "dims": "I=4096,J=8192,K=32768",
    "mesh": "X=8,Y=2",
    "plan": str(Path(__file__).parents[3] / "examples" / "llama-3-8b-serve.yaml"),
    "phase": "decode",
    "find": "attention",
    "set": "chips=8",
    "answer": "0.1",
    "tokens": "2T",
    "days": "40",
    "price": "2.5",
    "beside": "h100",
    "chip": "hbm_bandwidth=9e11",
    "ttft": "4s",
    "tpot": "100ms",
    "rate": "2",
    "input": "1024",
    "output": "64",
}
KEYS = ("ArrowLeft", "ArrowLeft", "ArrowRight", "ArrowRight", "ArrowRight")


def start(view: str, control: str = "") -> dict[str, str]:
    """The words of a state from which a control is moved; the others have their defaults."""
    return {**SMALL.get(view, {}), **NEEDED.get((view, control), {})}


def base(view: str, control: str, files: dict[str, str] | None = None) -> str:
    """The link of that state."""
    state = start(view, control)
    if control == "phase" and files:
        state["folder"] = files["folder"]
    return f"{view}?{urlencode(state)}" if state else view


def asked(page, name, **state):
    """What the API says of a state."""
    found = page.get(f"/api/view/{name}", params=state)
    assert found.status_code == 200, found.text
    return found.json()


def other_words(control: Control, files: dict[str, str]) -> list[str]:
    """Words, or keys of a slider, that may change what is shown."""
    if control.kind in ("text", "entry"):
        return [{**TEXTS, **files}[control.name]]
    if control.kind == "flag":
        return ["yes"]
    if control.kind == "slider":
        return list(KEYS)
    return [written(value) for value in control.values if value != control.default][:8]


def report_folder(folder: Path) -> str:
    """The sample report with its program twice."""
    shutil.copytree(SAMPLE, folder)
    for path in [*folder.glob("train.*")]:
        shutil.copy(path, folder / path.name.replace("train.", "decode."))
    document = json.loads((folder / "compile.json").read_text())
    programs = document["result"]["programs"]
    programs.append({**programs[0], "phase": "decode"})
    (folder / "compile.json").write_text(json.dumps(document))
    return str(folder)


def trace_file(path: Path) -> str:
    """Sixty requests, two a second."""
    rows = ({"arrival": i / 2, "prompt": 100 + i, "output": 20 + i % 7} for i in range(60))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
