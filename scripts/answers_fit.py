"""Whether answers of `plan train` for our trainer fit when the real compiler makes their programs:
docs/lab/answers_fit.json, and its lines in docs/accuracy.md.

    python scripts/answers_fit.py [--cache FOLDER]

Jobs are drawn by a seed: model, TPU slice, tokens per chip and length. Of their default answers
those whose predicted peak is at least `NEAR` of usable memory are kept, `COUNT` in all, and
compiled by libtpu for a slice that is not here (5 to 150 CPU seconds each). Answers with pipeline
stages are left out: their step is many programs (`runtime/programs/train.py`), none of which is
compiled alone. A plan that stands in the JSON is not compiled again.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compiled.drawn import CHIPS, LENGTHS, TOKENS_PER_CHIP, Draw
from compiled.programs import compiled_case, predicted_memory
from made import made, put

import shardwise
from shardwise.commands.base.inputs import Hardware
from shardwise.errors import ShardwiseError
from shardwise.plans import TrainPlan
from shardwise.plans.files import plan_dict
from shardwise.plans.train import mesh_text
from shardwise.profiler.ahead import default_root

ROOT = Path(__file__).resolve().parent.parent
OUT, PAGE = ROOT / "docs" / "lab" / "answers_fit.json", ROOT / "docs" / "accuracy.md"
SEED, COUNT = 20261128, 30
NEAR = 0.8
"""The share of usable memory from which on an answer is near the limit."""
MODELS = (0.3e9, 35e9)
TRAINED_ON = (4, 8, 16, 32, 64)


def answers() -> Iterator[tuple[str, TrainPlan]]:
    """The first `COUNT` drawn answers near the limit, with a name each; no name twice."""
    draw, names = Draw(SEED, Hardware(), MODELS), set()
    while len(names) < COUNT:
        found = _answer(draw, draw.random.choice(CHIPS))
        if found is None or found.result["peak_bytes_per_chip"] < NEAR * _usable(found):
            continue
        plan = found.planning.best.plan
        if plan.degree("stage") > 1:
            continue
        sizes = f"{plan.global_batch_sequences} x {plan.sequence_length}"
        name = f"{plan.model} on {plan.slice}, {mesh_text(plan.mesh)}, {plan.remat}, {sizes}"
        if name not in names:
            names.add(name)
            yield name, plan


def _usable(found: Any) -> float:
    return found.result["usable_bytes_per_chip"]


def _answer(draw: Draw, chip: str) -> Any:
    """The answer to a drawn job, None where it has none."""
    model, on = draw.random.choice(draw.models), draw.slice(chip, TRAINED_ON)
    length, tokens = draw.random.choice(LENGTHS), draw.random.choice(TOKENS_PER_CHIP)
    if on is None:
        return None
    batch = max(tokens * draw.hardware.slice(on).slice.chips // length, 1)
    try:
        return shardwise.plan_train(model, on=on, batch=f"{batch}seq", seq=length, software="jax")
    except ShardwiseError:
        return None


def row_of(name: str, plan: TrainPlan, cache: Path) -> dict[str, Any]:
    """Peak bytes of a device, predicted and compiled, and whether the program fits."""
    case = compiled_case(plan, "train", Hardware(), cache)
    compiled = case.program.compiled
    needed, usable = compiled.needed_bytes, compiled.capacity_bytes
    return {
        "name": name,
        "plan": plan_dict(plan),
        "predicted": predicted_memory(plan, "train", needed, usable)["predicted"],
        "compiled": needed,
        "usable": usable,
        "fits": compiled.fits,
    }


def told(rows: list[dict[str, Any]]) -> str:
    """What they say, in a sentence."""
    done = [row for row in rows if "fits" in row]
    short = sorted(row["compiled"] / row["usable"] for row in done)
    misses = "; ".join(row["name"] for row in done if not row["fits"])
    failed = [row for row in rows if "fits" not in row]
    said = (
        f"Of {len(done)} answers without stages, drawn by a seed, whose predicted peak is at "
        f"least {NEAR:.0%} of usable memory, {sum(row['fits'] for row in done)} fit when libtpu "
        f"compiles them (`scripts/answers_fit.py`); the fullest takes {short[-1]:.0%}"
    )
    said += f". What does not fit: {misses}" if misses else ""
    return said + (f". Not compiled: {len(failed)}." if failed else ".")


def main() -> None:
    """Draw, compile what is missing, and write both files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, default=default_root().parent / "table")
    cache = parser.parse_args().cache
    held = json.loads(OUT.read_text(encoding="utf-8"))["rows"] if OUT.exists() else []
    known, rows = {row["name"]: row for row in held}, []
    for name, plan in answers():
        try:
            rows.append(known.get(name) or row_of(name, plan, cache))
        except ShardwiseError as error:
            rows.append({"name": name, "failure": str(error)})
        print(len(rows), rows[-1], flush=True)
        doc = {"schema_version": 1, **made(), "seed": SEED, "rows": rows}
        OUT.write_text(json.dumps(doc, indent=1) + "\n", encoding="utf-8")
    put(PAGE, __file__, told(rows))
    print(told(rows))


if __name__ == "__main__":
    main()
