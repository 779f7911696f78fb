"""One drawn einsum through everything: resolved, run, differentiated, counted, compared with XLA.

The best program of the resolver must equal the dense product in value and gradient, and every
collective of its compiled shard_map form must be the predicted one, byte for byte, at the sizes it
runs with and at those it is priced with. What XLA makes of the same shardings under plain jit is
then priced by the same rules as the program itself, collectives and local products one after the
other: equal, dearer or cheaper. A cheaper one must be explained by a rule of `rules.py`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from shardwise.hardware import Slice, parse_slice, place
from shardwise.profiler import run_function
from shardwise.profiler.hlo import (
    CompiledCollective,
    at_dtype,
    mesh_axes,
    read_collectives,
    read_matmuls,
)
from shardwise.roofline.strategies import seconds
from shardwise.sharding.chain import resolve
from shardwise.sharding.count import collective_op, count, product_op
from shardwise.sharding.lowering import predicted_collectives
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.program_text import program_source
from shardwise.sharding.reshard import Cost
from shardwise.sharding.steps import Program
from shardwise.work import Matmul
from shardwise.workflows.proof.draw import Case
from shardwise.workflows.proof.rules import explain
from shardwise.workflows.shard_run import RESOLUTION, sums

Choice = Literal["equal", "dearer", "cheaper"]
PRICED = "bf16"
"""Prices are for this dtype, whatever a case runs in: TPUs have no float32 peak."""
SAME = 1e-6
"""Relative difference up to which two prices are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one case. `problem` is empty unless it failed; `choice` is XLA's against ours.

    `ours` and `xla` are seconds of all collectives and local products, one after the other, on the
    case's slice; the collectives of both are spelt out. `rule` explains a cheaper choice of XLA.
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
    our_collectives: str
    xla_collectives: str
    rule: str
    problem: str


def prove(cases: Sequence[Case], *, devices: int = 8) -> tuple[Verdict, ...]:
    """Check cases together: one child process compiles and runs them all."""
    programs = [_resolved(case) for case in cases]
    jobs = []
    for case, program in zip(cases, programs, strict=True):
        both, alone = ("shard_map", "jit"), ("shard_map",)
        small = replace(program, sizes=case.sizes, dtype=case.dtype)
        large = replace(program, dtype=case.dtype)
        run = {"source": program_source(small, alone), "styles": alone}
        jobs.append(run | {"run": True, "gradients": True})
        look = {"source": program_source(large, both), "styles": both}
        jobs.append(look | {"run": False, "gradients": False})
    target = "shardwise.profiler.jobs:run_programs"
    answers = run_function(
        target,
        {"cases": jobs},
        devices=devices,
        seconds=60 + 10 * len(cases),
        xla_flags=("--xla_backend_optimization_level=0",),  # machine code alone; compiles quicker
    )
    pairs = zip(cases, programs, answers[::2], answers[1::2], strict=True)
    return tuple(_verdict(*pair) for pair in pairs)


def _resolved(case: Case) -> Program:
    """The best program at the priced sizes. It runs at the small ones too: both divide alike."""
    cost = _cost(parse_slice(case.slice_text), case.mesh)
    found = resolve(case.einsum, case.mesh, case.priced_sizes, dtype=PRICED, cost=cost, top=1)
    return found.best.program


def _cost(piece: Slice, mesh: Mesh) -> Cost:
    placement = place(piece, mesh)
    assert placement.legal, f"mesh {mesh} does not fill {piece}"
    return seconds(piece.chip, placement)


def _verdict(
    case: Case, program: Program, run: Mapping[str, Any], look: Mapping[str, Any]
) -> Verdict:
    small = replace(program, sizes=case.sizes, dtype=case.dtype)
    large = replace(program, dtype=case.dtype)
    as_predicted = _as_predicted(small, run["shard_map"]["hlo"])
    as_predicted = as_predicted and _as_predicted(large, look["shard_map"]["hlo"])
    cost = _cost(parse_slice(case.slice_text), case.mesh)
    theirs = _groups(case, look["jit"]["hlo"])
    products, matmuls = _matmuls(program), read_matmuls(look["jit"]["hlo"])
    ours = sum(cost(op) for op in count(program).ops if op.collective is not None)
    xla = sum(group.seconds for group in theirs)
    # XLA makes sums of what is no real matmul; then the collectives alone are compared.
    if len(matmuls) == len(products):
        ours += sum(_price(matmul, cost) for matmul in products)
        xla += sum(_price(matmul, cost) for matmul in matmuls)
    choice = _choice(ours, xla)
    rule = explain(case, program, look["jit"]["hlo"]) if choice == "cheaper" else ""
    error, gradient_error = run["shard_map"]["error"], run["shard_map"]["gradient_error"]
    problems = {
        "the result differs from the dense product": error > RESOLUTION[case.dtype],
        "the gradient differs": gradient_error > RESOLUTION[case.dtype],
        "the compiled collectives are not the predicted ones": not as_predicted,
        "XLA is cheaper and no rule says why": choice == "cheaper" and not rule,
    }
    return Verdict(
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
        our_collectives="; ".join(str(s) for s in program.steps if s.kind != "einsum"),
        xla_collectives=_spelt(theirs),
        rule=rule,
        problem="; ".join(text for text, failed in problems.items() if failed),
    )


def _as_predicted(program: Program, hlo: str) -> bool:
    """Whether kind, axes and bytes agree exactly, at the program's dtype, in sum per kind."""
    compiled = [at_dtype(c, program.dtype) for c in read_collectives(hlo)]
    axes = [mesh_axes(c.groups, program.mesh) for c in compiled]
    whole = all(a.whole for a, c in zip(axes, compiled, strict=True) if c.kind != "permute")
    have: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for c, a in zip(compiled, axes, strict=True):
        have[c.kind, a.axes] += c.bytes * c.count
    want = {key: size for key, (_, size) in sums(predicted_collectives(program)).items()}
    return whole and dict(have) == want


@dataclass(frozen=True, slots=True)
class _Group:
    """A collective of XLA's, over axes or parts of axes, priced."""

    collective: CompiledCollective
    axes: tuple[str, ...]
    seconds: float


def _groups(case: Case, hlo: str) -> list[_Group]:
    piece = parse_slice(case.slice_text)
    found = []
    for compiled in read_collectives(hlo):
        collective = at_dtype(compiled, PRICED)
        mesh, over = case.mesh, mesh_axes(collective.groups, case.mesh)
        if not over.axes:
            continue
        if not over.whole and collective.kind != "permute":
            # XLA may use a part of an axis: price it on the mesh with that axis in parts.
            mesh = _in_parts(case.mesh)
            over = mesh_axes(collective.groups, mesh)
        op = collective_op(collective.kind, over.axes, collective.bytes)
        spent = _cost(piece, mesh)(op) * collective.count
        found.append(_Group(collective, over.axes, spent))
    return found


def _in_parts(mesh: Mesh) -> Mesh:
    """Every axis as axes of prime degree, X=4 as x0=2,x1=2."""
    parts = []
    for axis, degree in mesh.items():
        factors = [p for p in (2, 2, 2, 3, 5, 7) if degree > 1]
        left, found = degree, []
        for prime in factors:
            if left % prime == 0:
                found.append(prime)
                left //= prime
        parts += [(f"{axis.lower()}{i}", prime) for i, prime in enumerate(found)]
    return Mesh(tuple(parts))


def _matmuls(program: Program) -> list[Matmul]:
    return [op.matmul for op in count(program).ops if op.matmul is not None]


def _price(matmul: Matmul, cost: Cost) -> float:
    """The cheaper way round: which operand comes first, hence what pads, is the compiler's choice."""
    b, m, k, n = matmul.batch, matmul.m, matmul.k, matmul.n
    ways = [(m, n), (n, m)]
    return min(
        cost(product_op([{"b": b, "m": p, "k": k}, {"b": b, "k": k, "n": q}], out, PRICED))
        for p, q in ways
        for out in [{"b": b, "m": p, "n": q}]
    )


def _choice(ours: float, xla: float) -> Choice:
    if abs(xla - ours) <= SAME * max(ours, xla):
        return "equal"
    return "dearer" if xla > ours else "cheaper"


def _spelt(groups: Sequence[_Group]) -> str:
    return "; ".join(
        f"{g.collective.kind} over {','.join(g.axes)} of {g.collective.bytes:g} B" for g in groups
    )
