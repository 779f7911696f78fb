"""The constants of our own trainer (stack `jax`), from programs that the real compiler made.

    python scripts/fit_jax.py [--cache FOLDER] [--kept | --gpu]

Each plan of `compiled/learning.json` is compiled once at the compiler's own effort (40 to 230 CPU
seconds) and kept in the folder, so that a run that was stopped goes on; with --kept nothing is
compiled: a row whose program is in the folder is read again, another keeps what was read before,
and all are counted and priced as today. Planned and compiled seconds are told apart by the classes
of `compiled/classes.py`; each constant is the ratio of one class's mean shares of the compiled
step, so that every plan counts the same and no constant sees the seconds of another class; `tiles`
is of attention compiled alone on five generations (`compiled/tiles.py`). Errors are of plans left
out, and those without each term stand beside them. On GPUs the trainer is the stack `jax_gpu`,
learned in the same way from measured steps (`compiled/gpu_steps.py`); with --gpu these alone are
read, and the rest stays what it was. Writes `docs/lab/fit_jax.md`, `.json` and
`src/shardwise/roofline/data/jax.toml`. The plans of `compiled/drawn.json` are not used.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from compiled.classes import CLASSES, compiled_classes, planned_classes
from compiled.drawn import LEARNING, LEARNING_SEED, load_drawn
from compiled.fitted import cells, errors, head, left_out, parser, rows_of, write, written
from compiled.gpu_steps import gpu_steps
from compiled.programs import Case, compiled_case, kept_case
from compiled.tiles import tile_rates
from made import made, table

from shardwise.commands.base.inputs import Hardware
from shardwise.models import ModelConfig, load_model
from shardwise.planner.evaluate import evaluate_train
from shardwise.plans import TrainPlan
from shardwise.plans.software.jax import JAX
from shardwise.roofline.stacks import COMPILED_CONSTANTS, IDEAL, Stack, load_stack, whole_sums
from shardwise.units import format_seconds
from shardwise.work import grouped

GOAL = (0.85, 1.20)
NEUTRAL = replace(IDEAL, overlap=0.0, whole_sums=whole_sums())
"""Everything as it is counted, and nothing hidden: what a class's seconds are compared with."""
TERMS: Mapping[str, tuple[str, ...]] = {
    "products": ("products",),
    "experts": ("experts",),
    "attention": ("attention",),
    "tiles": ("tiles",),
    "passes": ("passes",),
    "overlap": ("overlap",),
    "sums": ("sums",),
    "exchanges": ("exchanges",),
    "dispatch": ("dispatch",),
}
"""Terms and the constants that each sets; left out, these are those of the stack `xla`."""
BY_GENERATION = ("products", "overlap")
"""Constants that are told apart by generation."""
GPU_CONSTANTS = ("attention", "passes", "products", "experts", "dispatch")
"""Those that a step on one GPU shows."""
SHRINKAGE = 2
"""The weight of the average over all generations, in plans. A generation has 5 or 6 of its own. At
0, 18 of 28 left-out plans are within the goal; at 2, 20 are (docs/lab/log.md)."""
PAGE = """# The prices of our own trainer

Made by `python scripts/fit_jax.py` on {date} at {commit} with {versions}, from {count} of
{all} training plans of `scripts/compiled/learning.json` (seed {seed}), compiled for slices that are
not here (by {compiled}); do not edit by hand. The plans of docs/lab/compiled_drawn.md are not among
them.

A constant is the ratio of what a class of ops takes as compiled to what it takes as counted, each
as a share of its compiled step, averaged over the plans that have the class. `overlap` is one less
that of the gathers. Of it and `products`, what the n plans of a generation say counts there with
n / (n + {shrinkage}), the rest with what all plans say: libtpu's cycles of the same product, and
whether it gathers weights beside other work, differ by generation. `tiles` is the geometric mean of
attention alone, forward and backward, as a loop over tiles on five generations: {tiles}.
Narrow heads, loops over tiles, what merges the answers of a ring's hops and what keeps activations
for the backward pass have their formulas in the counting (`planner/step/layer.py`,
`planner/step/strategies/context.py`, `remat.py`), which the stack `jax` asks for.

Compiled over predicted seconds, the goal being {low:.2f} to {high:.2f}:

{summary}

## Constants

{constants}

{generations}

## Terms

Each left out alone, its constants those of the stack `xla`; all errors of plans left out.

{terms}

## Plans

Seconds of a class, as compiled over as counted with nothing hidden.

{plans}

## On GPUs

The stack `jax_gpu`: the same trainer as XLA compiles it for GPUs, from {gpu_count} training steps
of one H200 that `benchmarks/gpu.py` measured and captured (`scripts/compiled/gpu_steps.jsonl`, one
chip, bf16, JAX 0.11.2): cuDNN's attention, products by cuBLAS and Triton. Each constant is the
ratio of its class as above. What one chip does not show, transfers and their overlap, is that of
the stack `xla`; the numbers were drawn at random and every token is the same, so that what a chip
draws, and its clock, may differ from those of a run on text. Errors are of steps left out:

{gpu_summary}

{gpu_constants}

Seconds of a class, as measured over as counted; the ratio of the step is to its price left out.

{gpu_steps}
"""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """One plan: seconds of its compiled step, and of each class, counted and compiled; the key of
    its program, and the commit that `made` it."""

    name: str
    plan: TrainPlan
    key: str
    made: str
    seconds: float
    planned: Mapping[str, float]
    compiled: Mapping[str, float]
    cfg: ModelConfig | None = None
    """The model, where it is not the one that the plan names."""

    def priced(self, stack: Stack) -> float:
        """Its step under the constants of a stack."""
        return priced(self.plan, stack, self.cfg).step_seconds.expected


def priced(plan: TrainPlan, stack: Stack, cfg: ModelConfig | None = None) -> Any:
    """A plan's answer under a stack's constants, counted as our own trainer runs it."""
    piece = Hardware().slice(plan.slice).slice
    plan = replace(plan, stack=JAX.stack_on(piece.chip))
    cfg = cfg or load_model(plan.model)
    return evaluate_train(plan, cfg, piece, stack.on(piece.chip.generation))


def generation_of(plan: TrainPlan) -> str:
    """That of the chips of its slice."""
    return Hardware().slice(plan.slice).slice.chip.generation


def learned(
    name: str, _: str, plan: TrainPlan, cache: Path, before: Mapping[str, Any] | None
) -> Learned | None:
    """A plan and its compiled program, read; where there is a row `before`, nothing is compiled,
    and without the program it is as it was read then. None where the program does not fit."""
    found = priced(plan, NEUTRAL).estimate
    if before is None:
        case: Case | None = compiled_case(plan, "train", Hardware(), cache)
    else:
        case = kept_case(plan, "train", Hardware(), cache, key=before["key"])
        if case is None:
            return Learned(
                name=name,
                plan=plan,
                key=before["key"],
                made=before["made"],
                seconds=before["seconds"],
                planned=planned_classes(found),
                compiled=before["compiled"],
            )
    if case.program.timeline is None or not case.program.compiled.fits:
        return None
    tiled = any(t.op.tiled and float(t.total) for t in found.ops)
    key, before = case.program.compiled.key, before or {}
    return Learned(
        name=name,
        plan=plan,
        key=key,
        made=before["made"] if key == before.get("key") else made()["commit"],
        seconds=case.program.timeline.expected,
        planned=planned_classes(found),
        compiled=compiled_classes(case.program.timeline, tiled),
    )


def constants(rows: Sequence[Learned], tiles: float) -> dict[str, float]:
    """Every constant, from the ratios of the classes and the rate of a loop over tiles."""
    xla = load_stack("xla")

    def ratio(name: str, usual: float) -> float:
        some = [row for row in rows if row.planned[name] > 0]
        counted = sum(row.planned[name] / row.seconds for row in some)
        return sum(row.compiled[name] / row.seconds for row in some) / counted if some else usual

    kernel, passes = ratio("kernel", 1.0), max(ratio("elementwise", float(xla.passes)), 1.0)
    shown = min(ratio("gathers", 1 - float(xla.overlap)), 1.0)
    products = 1 / ratio("products", 1.0)
    return {
        "overlap": 1 - shown,
        "attention": 1 / kernel,
        "launch_seconds": float(xla.launch_seconds),
        "passes": passes,
        "products": products,
        "experts": 1 / ratio("experts", 1 / products) / products,
        "tiles": tiles,
        "sums": ratio("sums", shown) / shown if shown else 1.0,
        "exchanges": ratio("exchanges", 1.0),
        "dispatch": ratio("dispatch", passes) / passes,
    }


def by_generation(rows: Sequence[Learned]) -> dict[str, dict[str, float]]:
    """Those of BY_GENERATION on each generation that the plans are of: between what all plans and
    what its own say."""
    everywhere, found = constants(rows, 1.0), {}
    sums = everywhere["sums"] * (1 - everywhere["overlap"])
    for name, own in sorted(grouped(rows, lambda row: generation_of(row.plan)).items()):
        share, here = len(own) / (len(own) + SHRINKAGE), constants(own, 1.0)
        each = {one: share * here[one] + (1 - share) * everywhere[one] for one in BY_GENERATION}
        # What sums take is learned of all; a price has it times what shows of them there.
        found[name] = {**each, "sums": sums / (1 - each["overlap"])}
    return found


def on_gpu() -> list[Learned]:
    """The steps that were measured on a GPU."""
    return [
        Learned(
            name=step.name,
            plan=step.plan,
            key="",
            made="",
            seconds=step.seconds,
            planned=planned_classes(priced(step.plan, NEUTRAL, step.cfg).estimate),
            compiled=step.measured,
            cfg=step.cfg,
        )
        for step in gpu_steps()
    ]


def gpu_stack(rows: Sequence[Learned]) -> Stack:
    """The stack that steps on one GPU teach: what they have not, as `xla` has it."""
    return Stack(name="jax_gpu", sources={}, **constants(rows, 1.0))


def gpu_document(rows: Sequence[Learned]) -> dict[str, Any]:
    """What the page and the table show of steps on a GPU."""
    xla, stack = load_stack("xla"), gpu_stack(rows)
    ratios = left_out(rows, lambda row, some: row.seconds / row.priced(gpu_stack(some)))
    return {
        "constants": constants(rows, 1.0),
        "summary": {
            "as the stack xla": summary([r.seconds / evaluate(r.plan, xla, r.cfg) for r in rows]),
            "left out": summary(ratios),
            "in-sample": summary([row.seconds / row.priced(stack) for row in rows]),
        },
        "rows": [
            {
                "name": f": {row.name}",
                "seconds": row.seconds,
                "predicted": row.seconds / ratio,
                "planned": row.planned,
                "compiled": row.compiled,
            }
            for row, ratio in zip(rows, ratios, strict=True)
        ],
    }


def stack_of(rows: Sequence[Learned], tiles: float, without: str = "") -> Stack:
    """The stack that plans teach, the constants of one term as `xla` has them."""
    xla = load_stack("xla")
    usual = {name: float(getattr(xla, name)) for name in TERMS.get(without, ())}
    given: dict[str, Any] = {**constants(rows, tiles), **usual}
    generations = {
        name: {one: value for one, value in own.items() if one not in usual}
        for name, own in by_generation(rows).items()
        if without != "generations"
    }
    return Stack(name="jax", sources={}, generations=generations, whole_sums=whole_sums(), **given)


def by_others(rows: Sequence[Learned], tiles: float, without: str = "") -> list[float]:
    """Compiled over predicted seconds of every plan by the constants of the others."""

    def ratio(row: Learned, others: Sequence[Learned]) -> float:
        return row.seconds / row.priced(stack_of(others, tiles, without))

    return left_out(rows, ratio)


def summary(ratios: Sequence[float]) -> dict[str, float]:
    """Errors of plans."""
    return errors(ratios, GOAL)


def document(rows: Sequence[Learned], count: int, rates: Mapping[str, float]) -> dict[str, Any]:
    """All that the page shows."""
    tiles = geometric_mean(rates.values())
    xla, stack = load_stack("xla"), stack_of(rows, tiles)
    before = [row.seconds / evaluate(row.plan, xla) for row in rows]
    out = by_others(rows, tiles)
    return {
        "schema_version": 1,
        **made(),
        "seed": LEARNING_SEED,
        "plans": count,
        "constants": constants(rows, tiles),
        "generations": by_generation(rows),
        "tiles": dict(rates),
        "summary": {
            "as the stack xla": summary(before),
            "left out": summary(out),
            "in-sample": summary([row.seconds / row.priced(stack) for row in rows]),
        },
        "terms": {name: summary(by_others(rows, tiles, name)) for name in (*TERMS, "generations")},
        "rows": [
            {
                "name": row.name,
                "key": row.key,
                "made": row.made,
                "seconds": row.seconds,
                "xla": evaluate(row.plan, xla),
                "predicted": row.seconds / ratio,
                "planned": row.planned,
                "compiled": row.compiled,
            }
            for row, ratio in zip(rows, out, strict=True)
        ],
    }


def evaluate(plan: TrainPlan, stack: Stack, cfg: ModelConfig | None = None) -> float:
    """A plan's step as the stack `xla` counts and prices it."""
    plan = replace(plan, stack="xla")
    piece, cfg = Hardware().slice(plan.slice).slice, cfg or load_model(plan.model)
    return evaluate_train(plan, cfg, piece, stack).step_seconds.expected


def page(doc: Mapping[str, Any]) -> str:
    """docs/lab/fit_jax.md of its JSON."""
    n = len(doc["rows"])

    said = {name: cells(one, n) for name, one in (doc["summary"] | doc["terms"]).items()}
    return PAGE.format(
        **head(doc, GOAL),
        compiled=", ".join(dict.fromkeys(row["made"] for row in doc["rows"])),
        tiles=", ".join(f"{chip} {rate:.2f}" for chip, rate in doc["tiles"].items()),
        summary=table(ERRORS, [[name, *said[name]] for name in doc["summary"]]),
        constants=table(
            ("constant", "value", "of `xla`", "meaning"),
            [
                [name, f"{value:.3g}", f"{float(getattr(load_stack('xla'), name)):.3g}", meaning]
                for name, meaning in COMPILED_CONSTANTS.items()
                for value in [doc["constants"][name]]
            ],
        ),
        shrinkage=SHRINKAGE,
        generations=table(
            ("on", *BY_GENERATION, "sums"),
            [
                [name, *(f"{value:.3g}" for value in own.values())]
                for name, own in doc["generations"].items()
            ],
        ),
        terms=table(
            ("without", *ERRORS[1:]),
            [["nothing", *said["left out"]], *([name, *said[name]] for name in doc["terms"])],
        ),
        plans=table(("plan", "compiled", "ratio", *CLASSES), map(_cells, doc["rows"])),
        **gpu_page(doc["gpu"]),
    )


ERRORS = ("", "median", "median error", "within the goal")


def gpu_page(doc: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says of steps on a GPU."""
    n, xla = len(doc["rows"]), load_stack("xla")
    said = [[name, *cells(one, n)] for name, one in doc["summary"].items()]
    shown = [c for c in CLASSES if any(row["compiled"][c] for row in doc["rows"])]
    return {
        "gpu_count": n,
        "gpu_summary": table(ERRORS, said),
        "gpu_constants": table(
            ("constant", "value", "of `xla`"),
            [
                [name, f"{doc['constants'][name]:.3g}", f"{float(getattr(xla, name)):.3g}"]
                for name in GPU_CONSTANTS
            ],
        ),
        "gpu_steps": table(
            ("step", "measured", "ratio", *shown),
            [_cells(row, shown) for row in doc["rows"]],
        ),
    }


def _cells(row: Mapping[str, Any], shown: Sequence[str] = CLASSES) -> list[str]:
    each = [
        f"{row['compiled'][name] / row['planned'][name]:.2f}" if row["planned"][name] else ""
        for name in shown
    ]
    name, seconds = row["name"].partition(": ")[2], format_seconds(row["seconds"])
    return [name, seconds, f"{row['seconds'] / row['predicted']:.2f}", *each]


def toml(doc: Mapping[str, Any]) -> str:
    """The constants of both stacks."""
    programs = f"compiled programs of {len(doc['rows'])} training plans (docs/lab/fit_jax.md)"
    compiled = f'source = "{programs}", basis = "compiler"'
    shared = 'source = "that of the stack xla", basis = "fitted"'
    lines = []
    for name in COMPILED_CONSTANTS:
        said = shared if name == "launch_seconds" else compiled
        lines.append(f"{name} = {{ value = {doc['constants'][name]:.4g}, {said} }}")
    for generation, own in doc["generations"].items():
        lines += ["", f"[jax.generations.{generation}]"]
        lines += [f"{n} = {{ value = {v:.4g}, {compiled} }}" for n, v in own.items()]
    steps = f"measured steps of {len(doc['gpu']['rows'])} plans on one H200 (docs/lab/fit_jax.md)"
    measured = f'source = "{steps}", basis = "measured"'
    lines += ["", "[jax_gpu]"]
    for name, value in doc["gpu"]["constants"].items():
        said = measured if name in GPU_CONSTANTS else shared
        lines.append(f"{name} = {{ value = {value:.4g}, {said} }}")
    return "\n".join(["[jax]", *lines])


def main() -> None:
    """Compile what the cache lacks, then write all files."""
    words = parser(__doc__)
    words.add_argument("--gpu", action="store_true", help="only read steps on a GPU again")
    options, known = words.parse_args(), written("fit_jax")
    doc = known if options.gpu else from_programs(options, known)
    doc["gpu"] = {"date": made()["date"], **gpu_document(on_gpu())}
    write("fit_jax", doc, page(doc), "jax.toml", toml(doc))


def from_programs(options: argparse.Namespace, known: Mapping[str, Any]) -> dict[str, Any]:
    """What compiled programs say."""
    plans = load_drawn(LEARNING)
    rows = rows_of(plans, known, options, learned)
    tiles = known["tiles"] if options.kept else tile_rates(options.cache)
    return document(rows, len(plans), tiles)


if __name__ == "__main__":
    main()
