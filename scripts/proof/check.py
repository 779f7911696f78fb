"""One drawn einsum through everything: resolved, run, differentiated, counted, compared with XLA.

The best program of the resolver must equal the dense product in value and gradient, and every
collective of its compiled shard_map form must be the predicted one, byte for byte, at the sizes it
runs with and at those it is priced with. What XLA makes of the same shardings under plain jit is
then priced by the same rules as the program itself, collectives and local products one after the
other (`pricing.py`): equal, dearer or cheaper. A cheaper one must be explained by a rule of
`rules.py`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from proof.draw import DrawnEinsum
from proof.pricing import (
    PRICED,
    cost_on,
    program_seconds,
    xla_collectives,
    xla_products,
)
from proof.rules import explanation
from shardwise.commands.shard.run import RESOLUTION, sums
from shardwise.hardware import parse_slice
from shardwise.profiler import QUICK_COMPILE, run_function
from shardwise.profiler.hlo import at_dtype, mesh_axes, read_collectives
from shardwise.sharding.chain import resolve
from shardwise.sharding.lowering import predicted_collectives
from shardwise.sharding.program_text import Style, program_source
from shardwise.sharding.steps import Program

Choice = Literal["equal", "dearer", "cheaper", "unsaid"]
SAME = 1e-6
"""Relative difference up to which two prices are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofVerdict:
    """What came of one case. `problem` is empty unless it failed; `choice` is XLA's against ours,
    "unsaid" where plain jit cannot say what is wanted (a result that stays unreduced).

    `ours` and `xla` are seconds of all collectives and local products, one after the other, on the
    case's slice; the collectives of both are spelt out. `as_compiled` is XLA's with its all-reduces
    as they stand. `rule` explains a cheaper choice of XLA.
    """

    seed: int
    einsum: str
    mesh: str
    slice_text: str
    dtype: str
    error: float
    gradient_error: float
    as_predicted: bool
    choice: Choice
    ours: float
    xla: float
    as_compiled: float
    our_collectives: str
    xla_collectives: str
    rule: str
    problem: str


def prove(cases: Sequence[DrawnEinsum], *, devices: int = 8) -> tuple[ProofVerdict, ...]:
    """Check cases together: one child process compiles and runs them all."""
    programs = [_resolved(case) for case in cases]
    jobs = []
    for case, program in zip(cases, programs, strict=True):
        small = replace(program, sizes=case.sizes, dtype=case.dtype)
        large = replace(program, dtype=case.dtype)
        jobs += [
            _job(small, ("shard_map",), run=True),
            _job(large, ("shard_map", "jit"), run=False),
        ]
    target = "shardwise.profiler.jobs:run_programs"
    answers = run_function(
        target,
        {"cases": jobs},
        devices=devices,
        seconds=60 + 10 * len(cases),
        xla_flags=QUICK_COMPILE,
    )
    pairs = zip(cases, programs, answers[::2], answers[1::2], strict=True)
    return tuple(_verdict(*pair) for pair in pairs)


def _job(program: Program, styles: tuple[Style, ...], *, run: bool) -> dict[str, Any]:
    source = program_source(program, styles)
    return {"source": source, "styles": styles, "run": run, "gradients": run}


def _resolved(case: DrawnEinsum) -> Program:
    """The best program at the priced sizes. It runs at the small ones too: both divide alike."""
    cost = cost_on(parse_slice(case.slice_text), case.mesh)
    found = resolve(case.einsum, case.mesh, case.priced_sizes, dtype=PRICED, cost=cost, top=1)
    return found.best.program


def _verdict(
    case: DrawnEinsum, program: Program, run: Mapping[str, Any], look: Mapping[str, Any]
) -> ProofVerdict:
    small = replace(program, sizes=case.sizes, dtype=case.dtype)
    large = replace(program, dtype=case.dtype)
    as_predicted = _as_predicted(small, run["shard_map"]["hlo"])
    as_predicted = as_predicted and _as_predicted(large, look["shard_map"]["hlo"])
    hlo, piece = look["jit"]["hlo"], parse_slice(case.slice_text)
    chosen = xla_collectives(hlo, case.mesh, piece)
    local = xla_products(hlo, case.mesh, piece)
    # XLA makes sums of what is no real matmul; then the collectives alone are compared.
    products = len(local) == sum(step.kind == "einsum" for step in program.steps)
    ours = program_seconds(program, piece, products=products)
    xla = sum(c.seconds for c in chosen) + products * sum(local)
    as_compiled = sum(c.as_compiled for c in chosen) + products * sum(local)
    choice = "unsaid" if case.einsum.result.unreduced else compare(ours, xla)
    rule = ""
    if choice == "cheaper":
        rule = explanation(case, chosen, xla, products=products)
    error, gradient_error = run["shard_map"]["error"], run["shard_map"]["gradient_error"]
    problems = {
        "the result differs from the dense product": error > RESOLUTION[case.dtype],
        "the gradient differs": gradient_error > RESOLUTION[case.dtype],
        "the compiled collectives are not the predicted ones": not as_predicted,
        "XLA is cheaper and no rule says why": choice == "cheaper" and not rule,
    }
    return ProofVerdict(
        seed=case.seed,
        einsum=str(case.einsum),
        mesh=str(case.mesh),
        slice_text=case.slice_text,
        dtype=case.dtype,
        error=error,
        gradient_error=gradient_error,
        as_predicted=as_predicted,
        choice=choice,
        ours=ours,
        xla=xla,
        as_compiled=as_compiled,
        our_collectives="; ".join(str(s) for s in program.steps if s.kind != "einsum"),
        xla_collectives="; ".join(map(str, chosen)),
        rule=rule,
        problem="; ".join(text for text, failed in problems.items() if failed),
    )


def _as_predicted(program: Program, hlo: str) -> bool:
    """Whether kind, axes and bytes agree exactly, at the program's dtype, in sum per kind."""
    compiled = [at_dtype(c, program.dtype) for c in read_collectives(hlo)]
    axes = [mesh_axes(c.groups, program.mesh) for c in compiled]
    whole = all(a.whole for a, c in zip(axes, compiled, strict=True) if c.kind != "permute")
    have: defaultdict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    for c, a in zip(compiled, axes, strict=True):
        have[c.kind, a.axes] += c.bytes * c.count
    want = {key: size for key, (_, size) in sums(predicted_collectives(program)).items()}
    return whole and dict(have) == want


def compare(ours: float, xla: float) -> Choice:
    """XLA's price against ours."""
    if abs(xla - ours) <= SAME * max(ours, xla):
        return "equal"
    return "dearer" if xla > ours else "cheaper"
