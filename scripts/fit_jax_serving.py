"""The constants of our own engine on TPUs (`jax`), from steps that the real compiler made.

    python scripts/fit_jax_serving.py [--cache FOLDER] [--kept]

Each server of `compiled/learning_serve.json` has its step of decode or prefill compiled once (20 to
60 CPU seconds) and kept in the folder, so that a run that was stopped goes on; with --kept nothing
is compiled, and the committed rows are counted and priced as today. What a class of ops takes as
compiled is held beside what it takes at the chip's own rates, plan by plan; a constant is the
median of the ratios:

    of decode steps  `streams` of products, and `narrow` of those with weights of a byte over it;
                     `hops`, of what transfers take beyond their bytes; `kernel_seconds`, of what
                     is no product, kernel or transfer, for each kernel that is counted
    of prefills      `products`, `attention`, `exchanges` of sums over tensor, `passes` of the rest

Errors are of plans left out. Writes `docs/lab/fit_jax_serving.md`, `.json` and
`src/shardwise/roofline/data/jax_engine.toml`. Plans of `compiled/drawn.json` are not used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from compiled.drawn import LEARNING_SERVE, LEARNING_SERVE_SEED, load_drawn
from compiled.fitted import cells, errors, head, left_out, parser, rows_of, write, written
from compiled.programs import compiled_case
from made import made, table

from shardwise.commands.base.inputs import Hardware
from shardwise.models import load_model
from shardwise.planner.serve.server import server_of
from shardwise.plans import ServePlan
from shardwise.profiler.timeline import HloTimeline
from shardwise.roofline import Estimate
from shardwise.roofline.engines import (
    COMPILED_ENGINE_CONSTANTS,
    IDEAL_ENGINE,
    EngineConstants,
)
from shardwise.roofline.price import SUMS, over_tensor
from shardwise.roofline.stacks import whole_sums
from shardwise.units import dtype_bytes, format_seconds
from shardwise.work import Op, tally

GOAL = (0.80, 1.30)
CLASSES = ("products", "kernel", "exchanges", "transfers", "rest")
PAGE = """# The prices of our own engine on TPUs

Made by `python scripts/fit_jax_serving.py` on {date} at {commit} with {versions}, from {count} of
{all} steps of `scripts/compiled/learning_serve.json` (seed {seed}), compiled for slices that are
not here (by {compiled}); do not edit by hand. The plans of docs/lab/compiled_drawn.md are not among
them.

A constant is the median, over plans, of what a class of ops takes as compiled over what it takes at
the chip's own rates. Decode steps say at which rate products read their operands (`streams`, and
`narrow` of it where weights of a byte are made wide), how much latency transfers pay (`hops`,
beyond their bytes), and what all that is no product, kernel or transfer takes for each kernel that
is counted (`kernel_seconds`); prefills the rates of `products` and `attention`, the seconds of
large sums (`exchanges`) and what elementwise ops move (`passes`).

Compiled over predicted seconds, the goal being {low:.2f} to {high:.2f}:

{summary}

## Constants

{constants}

## Plans

Seconds of a class, as compiled over as counted; of the rest, seconds of each kernel beyond.

{plans}
"""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """One step: its compiled seconds, those of each class, counted and compiled, the kernels that
    are counted, and what its transfers are counted to take for their bytes alone."""

    name: str
    phase: str
    plan: ServePlan
    seconds: float
    kernels: float
    planned: Mapping[str, float]
    compiled: Mapping[str, float]
    instant: Mapping[str, float]

    def rest(self, kernel_seconds: float = 0.0) -> float:
        """Compiled seconds of the rest beyond so much a kernel."""
        return max(self.compiled["rest"] - kernel_seconds * self.kernels, 0.0)

    def priced(self, engine: EngineConstants) -> float:
        """The step under an engine's constants."""
        return float(estimate(self.plan, self.phase, engine).expected)


def estimate(plan: ServePlan, phase: str, engine: EngineConstants) -> Estimate:
    """A step, priced."""
    piece = Hardware().slice(plan.slice).slice
    server = server_of(plan, load_model(plan.model), piece, engine=engine)
    return getattr(server, phase)(float(plan.batch)).estimate


def class_of(op: Op) -> str:
    """The class of an op, counted or compiled."""
    if op.collective is not None:
        return "exchanges" if op.collective.kind in SUMS and over_tensor(op) else "transfers"
    names = {"attention": "kernel", "matmul": "products"}
    return names.get(op.op_class, "rest")


def planned_classes(found: Estimate) -> dict[str, float]:
    """Seconds of a priced step by class."""
    return _all(tally((class_of(t.op), float(t.total)) for t in found.ops))


def compiled_classes(found: HloTimeline) -> dict[str, float]:
    """Seconds of a compiled step by class: of transfers what compute waits for."""
    return _all(
        tally(
            (
                class_of(row.op.op),
                row.per_step if row.op.op.stream == "compute" else row.exposed,
            )
            for row in found.rows
        )
    )


def _all(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds.get(name, 0.0) for name in CLASSES}


NEUTRAL = replace(IDEAL_ENGINE, whole_sums=whole_sums())
"""The chip's own rates, of what XLA sends."""


def learned(
    name: str, phase: str, plan: ServePlan, cache: Path, before: Mapping[str, Any] | None
) -> Learned | None:
    """A step and its compiled program, read; or, where there is a row `before`, as it was read
    then. None where the program gives no cycles."""
    if before is None:
        line = compiled_case(plan, phase, Hardware(), cache, {}).program.timeline
        if line is None:
            return None
        before = {"seconds": line.expected, "compiled": compiled_classes(line)}
    found, instant = (estimate(plan, phase, replace(NEUTRAL, hops=h)) for h in (1.0, 0.0))
    return Learned(
        name=name,
        phase=phase,
        plan=plan,
        seconds=before["seconds"],
        kernels=sum(float(t.op.count) for t in found.ops if float(t.total)),
        planned=planned_classes(found),
        compiled=before["compiled"],
        instant=planned_classes(instant),
    )


def sent(seconds: Mapping[str, float], exchanges: float = 1.0) -> float:
    """Seconds of all transfers; the sums over tensor are `exchanges` times as long."""
    return seconds["exchanges"] / exchanges + seconds["transfers"]


def constants(rows: Sequence[Learned]) -> dict[str, float]:
    """Every constant, a median of ratios."""
    decodes = [row for row in rows if row.phase == "decode"]
    prefills = [row for row in rows if row.phase == "prefill"]

    narrow = [row for row in decodes if dtype_bytes(row.plan.dtypes.weights) < 2]
    wide = [row for row in decodes if row not in narrow]

    def ratio(some: Sequence[Learned], name: str) -> float:
        return median(r.compiled[name] / r.planned[name] for r in some if r.planned[name] > 0)

    kernel = median(max(r.rest() - r.planned["rest"], 0.0) / r.kernels for r in decodes)
    exchanges = ratio(prefills, "exchanges")
    hops = median(
        (sent(r.compiled, exchanges) - sent(r.instant)) / (sent(r.planned) - sent(r.instant))
        for r in decodes
        if sent(r.planned) > sent(r.instant)
    )
    return {
        "kernel_seconds": kernel,
        "streams": 1 / ratio(wide, "products"),
        "narrow": min(ratio(wide, "products") / ratio(narrow, "products"), 1.0),
        "hops": max(hops, 0.0),
        "products": 1 / ratio(prefills, "products"),
        "attention": min(1 / ratio(prefills, "kernel"), 1.0),
        "exchanges": exchanges,
        "passes": max(median(r.rest(kernel) / r.planned["rest"] for r in prefills), 1.0),
    }


def engine_of(values: Mapping[str, float]) -> EngineConstants:
    """The engine of constants."""
    return replace(NEUTRAL, name="jax", sources={}, **values)


def summary(rows: Sequence[Learned], ratios: Sequence[float]) -> dict[str, Any]:
    """The errors of each phase's plans."""
    found = {}
    for phase in ("decode", "prefill"):
        some = [r for row, r in zip(rows, ratios, strict=True) if row.phase == phase]
        if some:
            found[phase] = {"plans": len(some), **errors(some, GOAL)}
    return found


def document(rows: Sequence[Learned], count: int) -> dict[str, Any]:
    """All that the page shows."""
    values = constants(rows)
    ideal = [row.seconds / row.priced(IDEAL_ENGINE) for row in rows]
    out = left_out(rows, lambda row, some: row.seconds / row.priced(engine_of(constants(some))))
    sample = [row.seconds / row.priced(engine_of(values)) for row in rows]
    return {
        "schema_version": 1,
        **made(),
        "seed": LEARNING_SERVE_SEED,
        "plans": count,
        "constants": values,
        "summary": {
            "at the chip's own rates": summary(rows, ideal),
            "left out": summary(rows, out),
            "in-sample": summary(rows, sample),
        },
        "rows": [
            {
                "name": row.name,
                "seconds": row.seconds,
                "ideal": row.seconds / before,
                "predicted": row.seconds / ratio,
                "kernels": row.kernels,
                "planned": row.planned,
                "compiled": row.compiled,
            }
            for row, before, ratio in zip(rows, ideal, out, strict=True)
        ],
    }


def page(doc: Mapping[str, Any]) -> str:
    """docs/lab/fit_jax_serving.md of its JSON."""
    values = doc["constants"]
    said = [
        [name, phase, *cells(s, s["plans"])]
        for name, by_phase in doc["summary"].items()
        for phase, s in by_phase.items()
    ]
    return PAGE.format(
        **head(doc, GOAL),
        compiled=doc["compiled"],
        summary=table(("", "phase", "median", "median error", "within the goal"), said),
        constants=table(
            ("constant", "value", "meaning"),
            [[n, f"{values[n]:.3g}", about] for n, about in COMPILED_ENGINE_CONSTANTS.items()],
        ),
        plans=table(
            ("plan", "compiled", "ideal", "ratio", "left out", *CLASSES), map(_cells, doc["rows"])
        ),
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    planned, compiled = row["planned"], row["compiled"]
    each = [
        f"{compiled[name] / planned[name]:.2f}" if planned[name] else "" for name in CLASSES[:-1]
    ]
    beyond = max(compiled["rest"] - planned["rest"], 0.0) / row["kernels"]
    seconds = [format_seconds(row[name]) for name in ("seconds", "ideal")]
    ratios = [f"{row['seconds'] / row[name]:.2f}" for name in ("ideal", "predicted")]
    return [row["name"], *seconds, *ratios, *each, format_seconds(beyond)]


def toml(doc: Mapping[str, Any]) -> str:
    """The constants of the engine."""
    said = f"{len(doc['rows'])} compiled steps of servers (docs/lab/fit_jax_serving.md)"
    lines = [
        f'{name} = {{ value = {doc["constants"][name]:.4g}, source = "{said}" }}'
        for name in COMPILED_ENGINE_CONSTANTS
    ]
    return "\n".join(["[jax]", *lines])


def main() -> None:
    """Compile what the cache lacks, then write all files."""
    options, known = parser(__doc__).parse_args(), written("fit_jax_serving")
    plans = load_drawn(LEARNING_SERVE)
    doc = document(rows_of(plans, known, options, learned), len(plans))
    doc["compiled"] = known.get("compiled", known["commit"]) if options.kept else doc["commit"]
    write("fit_jax_serving", doc, page(doc), "jax_engine.toml", toml(doc))


if __name__ == "__main__":
    main()
