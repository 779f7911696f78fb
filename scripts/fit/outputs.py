"""What the fit writes: constants of generations and stacks as TOML, residual quantiles."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path

from fit.constants import CHIP_KINDS, GENERATIONS, STACK_KINDS
from fit.explain import Explained
from shardwise.roofline import stack_names

ROOT = Path(__file__).parents[2]
EFFICIENCY = ROOT / "scripts" / "efficiency.toml"
STACKS = ROOT / "src" / "shardwise" / "roofline" / "data" / "stacks.toml"


def write_constants(found: Mapping[str, Explained], date: str) -> None:
    """The two TOML files; `make_catalogue.py` lays the first over the catalogue."""
    EFFICIENCY.write_text(efficiency_toml(found, date), encoding="utf-8")
    STACKS.write_text(stacks_toml(found, date), encoding="utf-8")


def efficiency_toml(found: Mapping[str, Explained], date: str) -> str:
    """One table per generation, and one for chips that no published run uses."""
    lines = [
        f"# Made by scripts/fit_efficiency.py on {date}: constants of chip generations, which",
        "# make_catalogue.py lays over the measured ones. docs/fit.md says how they were found.",
    ]
    for generation, chips in GENERATIONS.items():
        lines += ["", f"[generations.{generation}]", f"chips = {json.dumps(list(chips))}"]
        own = [(c, found.get(f"{generation}.{c}")) for c in CHIP_KINDS]
        lines += [_entry(c, e.value, e.source) for c, e in own if e is not None]
    lines += ["", "[others]"]
    for constant in CHIP_KINDS:
        if constant == "matmul_fp8":
            continue
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
