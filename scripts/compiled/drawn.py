"""The plans of docs/lab/compiled.md whose seconds are judged: drawn by a seed, then compiled.

    PYTHONPATH=scripts python -m compiled.drawn [--learning train|serve]

writes `drawn.json`: of five generations of TPU steps of training, decode and prefill. Models,
slices, batches and lengths are drawn uniformly; a training plan is the search's best one for our
trainer, or one of its next twenty; a server's plan is that of `plan serve`, or a drawn mesh.
What has no plan that fits, by its own prediction, is drawn anew. Nothing is compiled before the
list stands. With --learning `learning.json` or `learning_serve.json`: training plans, or servers,
of another seed, from which the prices of our own trainer and engine are learned
(`scripts/fit_jax.py`, `scripts/fit_jax_serving.py`); none of them is one of `drawn.json`.
"""

import argparse
import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from made import made

import shardwise
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import check_fits, price_plan
from shardwise.commands.program.compiling import predicted_of
from shardwise.errors import ShardwiseError
from shardwise.hardware.slices import slices_of
from shardwise.models import load_model
from shardwise.models.counts import params_total
from shardwise.models.zoo import zoo_names
from shardwise.plans import ServeDtypes, ServePlan, TrainPlan
from shardwise.plans.files import plan_dict, plan_from
from shardwise.plans.identity import model_hash
from shardwise.plans.train import mesh_text

SEED = 20261124
DRAWN = Path(__file__).with_name("drawn.json")
CHIPS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
COUNTS: Mapping[str, int] = {
    "train, best": 9,
    "train, drawn": 17,
    "decode, best": 3,
    "decode, drawn": 17,
    "prefill, drawn": 14,
}
"""How many plans of each kind, dealt round the five generations."""
LEARNING_SEED = 20261201
LEARNING = DRAWN.with_name("learning.json")
LEARNED: Mapping[str, int] = {"train, best": 5, "train, drawn": 25}
LEARNING_SERVE_SEED = 20261202
LEARNING_SERVE = DRAWN.with_name("learning_serve.json")
LEARNED_SERVERS: Mapping[str, int] = {"decode, drawn": 15, "prefill, drawn": 10}
MODELS = (0.3e9, 110e9)
"""Parameters of a model that is drawn, least and most."""
LEARNING_MODELS = (0.3e9, 35e9)
TRAINED_ON = (8, 16, 32, 64, 128, 256)
BEST_ON = (8, 16, 32, 64, 128, 256, 512, 1024, 4096)
SERVED_ON = (1, 2, 4, 8, 16)
TOKENS_PER_CHIP = (2048, 4096, 8192, 16384)
LENGTHS = (1024, 2048, 4096, 8192)
BATCHES = (8, 16, 32, 64, 128)
WEIGHTS = ("bf16", "bf16", "int8", "fp8")
NEXT = 20


class Draw:
    """One generator of draws of a seed."""

    def __init__(self, seed: int, hardware: Hardware, models: tuple[float, float] = MODELS) -> None:
        self.random, self.hardware = random.Random(seed), hardware
        sized = ((name, load_model(name)) for name in zoo_names())
        low, high = models
        self.models = [
            name
            for name, cfg in sized
            if cfg.numerics is not None and low <= params_total(cfg) <= high
        ]

    def slice(self, chip: str, counts: tuple[int, ...]) -> str | None:
        """A slice of as many chips as one of the counts, in the most cube-like shape."""
        count = self.random.choice(counts)
        found = [s for s in slices_of(self.hardware.chip(chip)) if s.chips == count]
        return str(min(found, key=lambda s: max(s.shape))) if found else None

    def train_best(self, chip: str) -> TrainPlan | None:
        """The best plan of a search."""
        return next(self._searched(chip, BEST_ON, 1), None)

    def train_drawn(self, chip: str) -> TrainPlan | None:
        """Any of the best plans of a search but the first."""
        others = list(self._searched(chip, TRAINED_ON, NEXT))[1:]
        return self.random.choice(others) if others else None

    def decode_best(self, chip: str) -> ServePlan | None:
        """What `plan serve` answers for a drawn rate of requests."""
        length = self.random.choice(LENGTHS)
        return shardwise.plan_serve(
            self.random.choice(self.models),
            on=chip,
            input=length,
            output=self.random.choice((128, 256, 512)),
            rate=self.random.choice((1, 2, 4)),
            software="jax",
        ).plan

    def served(self, chip: str) -> ServePlan | None:
        """A server of a drawn mesh of copies and of weights over `tensor`."""
        model, on = self.random.choice(self.models), self.slice(chip, SERVED_ON)
        weights, batch = self.random.choice(WEIGHTS), self.random.choice(BATCHES)
        length = self.random.choice(LENGTHS)
        if on is None:
            return None
        piece = self.hardware.slice(on).slice
        copies = self.random.choice([n for n in (1, 1, 1, 2, 4) if piece.devices % n == 0])
        return ServePlan(
            model=model,
            model_hash=model_hash(load_model(model)),
            slice=str(piece),
            mesh={"data": copies, "tensor": piece.devices // copies},
            box=piece.shape,
            batch=batch,
            input_length=length - 128,
            output_length=128,
            dtypes=ServeDtypes(weights=weights),
            engine="ideal",
        )

    def _searched(self, chip: str, counts: tuple[int, ...], top: int) -> Iterator[TrainPlan]:
        model, on = self.random.choice(self.models), self.slice(chip, counts)
        length, tokens = self.random.choice(LENGTHS), self.random.choice(TOKENS_PER_CHIP)
        if on is None:
            return
        chips = self.hardware.slice(on).slice.chips
        found = shardwise.plan_train(
            model,
            on=on,
            batch=f"{max(tokens * chips // length, 1)}seq",
            seq=length,
            software="jax",
            pins={"stage": 1},
            top=top,
        )
        for answer in (found.planning.best, *found.planning.runners_up):
            yield answer.plan


def drawn(draw: Draw, counts: Mapping[str, int], names: Collection[str]) -> list[dict[str, Any]]:
    """Every plan, with its name and phase; none by one of `names`."""
    hardware, rows, names = draw.hardware, [], set(names)
    for kind, count in counts.items():
        make, phase = _maker(draw, kind), kind.split(",")[0]
        for i in range(count):
            while (plan := _fits(make, CHIPS[i % len(CHIPS)], phase, hardware)) is None or (
                (name := f"{kind}: {_name(plan)}") in names
            ):
                pass
            names.add(name)
            rows.append({"name": name, "phase": phase, "plan": plan_dict(plan)})
            print(name, flush=True)
    return rows


def load_drawn(path: Path = DRAWN) -> dict[str, tuple[str, TrainPlan | ServePlan]]:
    """Phase and plan of each, by name."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {row["name"]: (row["phase"], plan_from(row["plan"], path.name)) for row in rows}


def _maker(draw: Draw, kind: str) -> Callable[[str], TrainPlan | ServePlan | None]:
    return {
        "train, best": draw.train_best,
        "train, drawn": draw.train_drawn,
        "decode, best": draw.decode_best,
    }.get(kind, draw.served)


def _fits(
    make: Callable[[str], TrainPlan | ServePlan | None], chip: str, phase: str, hardware: Hardware
) -> TrainPlan | ServePlan | None:
    """A plan that our runtime takes and that fits as priced; None for another draw."""
    try:
        plan = make(chip)
        if plan is None:
            return None
        priced = price_plan(plan, hardware)
        check_fits(priced)
        predicted_of(priced, phase)
    except ShardwiseError:
        return None
    return plan


def _name(plan: TrainPlan | ServePlan) -> str:
    if isinstance(plan, TrainPlan):
        batch = f"{plan.global_batch_sequences} x {plan.sequence_length}"
    else:
        batch = f"{plan.batch} x {plan.input_length + plan.output_length} {plan.dtypes.weights}"
    return f"{plan.model} on {plan.slice}, {mesh_text(plan.mesh)}, {batch}"


def main() -> None:
    """Draw one of the three lists."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--learning", choices=["train", "serve"])
    path, seed, counts = {
        None: (DRAWN, SEED, COUNTS),
        "train": (LEARNING, LEARNING_SEED, LEARNED),
        "serve": (LEARNING_SERVE, LEARNING_SERVE_SEED, LEARNED_SERVERS),
    }[parser.parse_args().learning]
    judged = path == DRAWN
    draw = Draw(seed, Hardware(), MODELS if judged else LEARNING_MODELS)
    rows = drawn(draw, counts, () if judged else load_drawn())
    document = {**made(), "seed": seed, "rows": rows}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
