"""What the fit writes: constants of generations and stacks as TOML, residual quantiles."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path

from fit.constants import CHIP_KINDS, GENERATIONS, OTHERS, STACK_KINDS
from fit.explain import Explained
from shardwise.hardware.catalogue import GENERATIONS as GENERATION_FILES
from shardwise.roofline import stack_names

ROOT = Path(__file__).parents[2]
STACKS = ROOT / "src" / "shardwise" / "roofline" / "data" / "stacks.toml"


def write_constants(found: Mapping[str, Explained], date: str) -> None:
    """A file per generation, one for the chips that no published run uses, and the stacks'."""
    for generation in (*GENERATIONS, OTHERS):
        text = generation_toml(generation, found, date)
        (GENERATION_FILES / f"{generation}.toml").write_text(text, encoding="utf-8")
    STACKS.write_text(stacks_toml(found, date), encoding="utf-8")


def generation_toml(generation: str, found: Mapping[str, Explained], date: str) -> str:
    """The constants of one generation; those of `OTHERS` are the medians of all generations."""
    lines = [f"# Made by scripts/fit_efficiency.py on {date}; docs/fit.md says how."]
    for constant in CHIP_KINDS:
        own = found.get(f"{generation}.{constant}")
        if own is not None:
            lines.append(_entry(constant, own.value, own.source))
        elif generation == OTHERS and constant != "matmul_fp8":
            values = [found[f"{g}.{constant}"].value for g in GENERATIONS]
            source = f"assumed: median of the {len(values)} generations of docs/fit.md"
            lines.append(_entry(constant, statistics.median(values), source))
    return "\n".join(lines) + "\n"


def stacks_toml(found: Mapping[str, Explained], date: str) -> str:
    """One table per software stack."""
    lines = [
        f"# Made by scripts/fit_efficiency.py on {date}; docs/fit.md says how they were found.",
    ]
    for stack in stack_names():
        lines += ["", f"[{stack}]"]
        for constant in STACK_KINDS:
            e = found[f"{stack}.{constant}"]
            lines.append(_entry(constant, e.value, e.source))
    return "\n".join(lines) + "\n"


def _entry(name: str, value: float, source: str) -> str:
    return f"{name} = {{ value = {value:.3g}, source = {json.dumps(source)} }}"
