"""A training plan held against the book's rules: which of its strategies stay compute-bound.

Each strategy of a plan gets one verdict: what the plan has, what the strategy needs, and whether
that is met. As in ch. 5 and 12 the MLP block stands for a layer, math runs at the dense peak, and
communication counts as hidden where it takes no longer than the math. Seconds of communication are
those of `roofline.collectives` over the plan's own links, so that few groups, several nodes under
one copy of the model and tori come out of one count; the rule of thumb stands beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from shardwise.book.rules.gpu import alphas, expert_d_ff
from shardwise.book.rules.training import mixed_limit, pipeline_bubble
from shardwise.boundary.records import Record
from shardwise.hardware import AxisLinks, Placement, Slice, Switched, Torus, place
from shardwise.models import ModelConfig
from shardwise.models.specs import Mlp, Moe
from shardwise.plans import MESH_AXES, TrainPlan
from shardwise.roofline.collectives import all_gather, permute, ragged_all_to_all
from shardwise.roofline.groups import Mode
from shardwise.units import dtype_bytes, format_count, sig
from shardwise.work import tally

REPLICATING = ("replica", "data")
STORING = ("fsdp", "expert", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict(Record):
    """One strategy against its rule."""

    strategy: str
    """Its name."""
    degree: int
    """Its degree in the plan."""
    have: float
    """What the plan has, in `unit`."""
    need: float
    """What the strategy needs by the plan's own links and degrees."""
    rule_need: float
    """What it needs by the rule of thumb for many chips."""
    unit: str
    """Tokens per chip, a width F, a degree, or a share of the math."""
    at_least: bool
    """Whether the plan must have at least the need (tokens per chip, F), or at most."""
    rule: str
    """The formula."""
    source: str
    """The book's section."""
    text: str
    """The verdict in words."""
    ok: bool = field(init=False)
    """Whether the strategy is compute-bound."""

    def __post_init__(self) -> None:
        ok = self.have >= self.need if self.at_least else self.have <= self.need
        object.__setattr__(self, "ok", ok)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audit:
    """What the verdicts share. Seconds are per layer; `tokens` are of the whole step."""

    plan: TrainPlan
    cfg: ModelConfig
    placement: Placement
    d_ff: int
    experts: int
    chosen: int

    @property
    def chips(self) -> int:
        return int(self.placement.chips_used)

    @property
    def tokens_per_chip(self) -> float:
        return self.plan.tokens / self.chips

    @property
    def peak(self) -> float:
        return self.placement.slice.chip.peak(self.plan.dtypes.compute)

    @property
    def matrices(self) -> float:
        """Elements of W_in and W_out of one expert."""
        return 2.0 * self.cfg.d_model * self.d_ff

    def forward_math(self, tokens: float) -> float:
        """Seconds of one layer's forward matmuls for so many tokens of the step; a stage's layers
        have all chips of that stage."""
        chips = self.chips / self.plan.degree("stage")
        return 2 * tokens * self.chosen * self.matrices / (chips * self.peak)

    def links(self, axes: Sequence[str]) -> list[AxisLinks]:
        return [self.placement.axes[a] for a in axes if self.plan.degree(a) > 1]

    def degree(self, axes: Sequence[str]) -> int:
        return prod(self.plan.degree(a) for a in axes)


def audit(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> tuple[AuditVerdict, ...]:
    """The verdicts on a plan, one per strategy in use; () for a model without MLPs.

    Strategies without a rule in the book (context parallelism) get no verdict. Raises BadRequest
    where a link that is needed has no catalogued rate.
    """
    widths = _widest(cfg)
    if widths is None:
        return ()
    d_ff, experts, chosen = widths
    mesh = {axis: plan.degree(axis) for axis in MESH_AXES}
    part = replace(piece, count=plan.slices)
    placement = place(part, mesh, box=plan.box, finish=plan.placement == "finish")
    case = _Audit(
        plan=plan, cfg=cfg, placement=placement, d_ff=d_ff, experts=experts, chosen=chosen
    )
    found = [_data(case), _fsdp(case), _tensor(case), _mixed(case), _expert(case), _stage(case)]
    return tuple(v for v in found if v is not None)


def compute_bound(verdicts: Sequence[AuditVerdict]) -> bool:
    """Whether every strategy stays compute-bound."""
    return all(v.ok for v in verdicts)


def _widest(cfg: ModelConfig) -> tuple[int, int, int] | None:
    """F, E and k of the kind of MLP that most layers have; E = k = 1 without experts."""
    counts = tally((widths_of(layer.mlp), layers) for layer, layers in cfg.layer_groups())
    counts.pop(None, None)
    return max(counts, key=lambda k: counts[k]) if counts else None


def widths_of(mlp: object) -> tuple[int, int, int] | None:
    """F, E and k of an MLP, E = k = 1 without experts; None of what is no MLP."""
    if isinstance(mlp, Moe):
        return mlp.d_ff, mlp.experts, mlp.experts_per_token
    return (mlp.d_ff, 1, 1) if isinstance(mlp, Mlp) else None


def _model_parallel(case: _Audit) -> int:
    """Chips over which one layer's MLP weights are cut for good."""
    expert = case.plan.degree("expert") if case.experts > 1 else 1
    return case.plan.degree("tensor") * expert


def _stored_axes(case: _Audit) -> list[str]:
    """Axes over which ZeRO-3 stores MLP weights; experts already lie apart over `expert`."""
    axes = [a for a in STORING if a in case.plan.storage_axes and case.plan.degree(a) > 1]
    return [a for a in axes if not (a == "expert" and case.experts > 1)]


def _replicating_axes(case: _Audit) -> list[str]:
    stored = _stored_axes(case)
    left = [a for a in STORING if a not in stored and not (a == "expert" and case.experts > 1)]
    return [a for a in (*REPLICATING, *left) if case.plan.degree(a) > 1]


def _data(case: _Audit) -> AuditVerdict | None:
    """Gradients over the axes that replicate the weights, once per step, against its backward."""
    axes = _replicating_axes(case)
    if not axes:
        return None
    shards = _model_parallel(case) * case.degree(_stored_axes(case))
    elements = case.experts * case.matrices / shards
    math = 2 * case.forward_math(case.plan.tokens)
    links, grad = case.links(axes), dtype_bytes(case.plan.dtypes.grad)

    def need(mode: Mode) -> float:
        if case.plan.zero:
            both = grad + dtype_bytes(case.plan.dtypes.param)
            seconds = all_gather(both * elements, links, mode=mode).bandwidth
        else:
            # As the book has it, without in-network reduction: twice a gather.
            seconds = 2 * all_gather(grad * elements, links, mode=mode).bandwidth
        return case.tokens_per_chip * float(seconds) / math

    return _tokens_verdict(case, "data", axes, case.tokens_per_chip, need)


def _fsdp(case: _Audit) -> AuditVerdict | None:
    """Weights gathered and gradients scattered over the storage axes in every microbatch, against
    its backward pass; with pipelining that is why ZeRO-3 needs large microbatches (ch. 12)."""
    axes = _stored_axes(case)
    if not axes:
        return None
    elements = case.experts * case.matrices / _model_parallel(case)
    have = case.tokens_per_chip / case.plan.microbatches
    math = 2 * case.forward_math(case.plan.tokens / case.plan.microbatches)
    both = dtype_bytes(case.plan.dtypes.grad) + dtype_bytes(case.plan.dtypes.param)

    def need(mode: Mode) -> float:
        seconds = all_gather(both * elements, case.links(axes), mode=mode).bandwidth
        return have * float(seconds) / math

    return _tokens_verdict(case, "fsdp", axes, have, need)


def _tokens_verdict(
    case: _Audit, name: str, axes: Sequence[str], have: float, need
) -> AuditVerdict:
    exact, rule = need("exact"), need("asymptotic")
    unit = "tokens per chip" + (" and microbatch" if have < case.tokens_per_chip else "")
    what = "gradients" if name == "data" else "weights and gradients"
    sparse = f", {case.experts}/{case.chosen} of that for a dense MLP" * (case.experts > 1)
    return AuditVerdict(
        strategy=name,
        degree=case.degree(axes),
        have=have,
        need=exact,
        rule_need=rule,
        unit=unit,
        at_least=True,
        rule="B/N > (E/k) C / W" if case.experts > 1 else "B/N > C / W",
        source="ch. 5.1.1 and 5.1.2; ch. 12, Data Parallelism",
        text=(
            f"{what} over {case.degree(axes)} groups of {_copy_chips(case):,} chips "
            f"({' and '.join(axes)}): {sig(have)} {unit}, needs {sig(exact)} "
            f"({sig(rule)} if there were many groups{sparse}){_pure(case)}"
        ),
    )


def _copy_chips(case: _Audit) -> int:
    return _model_parallel(case) * case.plan.degree("stage")


def _pure(case: _Audit) -> str:
    """What data parallelism alone would need behind switches, in tokens per step."""
    chip = case.placement.slice.chip
    if not isinstance(chip.network, Switched) or chip.data_centre is None:
        return ""
    level = alphas(chip, case.plan.dtypes.compute)
    alpha = level.scale_out if case.placement.slice.count > 1 else level.node
    return (
        f"; with no model parallelism a dense MLP needs {sig(alpha)}, here "
        f"{format_count(alpha * case.chips)} tokens a step"
    )


def _tensor(case: _Audit) -> AuditVerdict | None:
    """Activations gathered and scattered over the tensor axis, against the forward pass."""
    degree = case.plan.degree("tensor")
    if degree == 1:
        return None
    tokens = case.plan.tokens
    groups = case.plan.devices / case.plan.degree("stage") / degree
    size = dtype_bytes(case.plan.dtypes.compute) * tokens / groups * case.cfg.d_model * case.chosen
    math = case.forward_math(tokens)

    def limit(mode: Mode) -> float:
        seconds = 2 * float(all_gather(size, case.links(["tensor"]), mode=mode).bandwidth)
        return degree * math / seconds

    exact, rule = limit("exact"), limit("asymptotic")
    return AuditVerdict(
        strategy="tensor",
        degree=degree,
        have=float(degree),
        need=exact,
        rule_need=rule,
        unit="degree",
        at_least=False,
        rule="Y < F W / C",
        source="ch. 5.1.3; ch. 12, Tensor Parallelism",
        text=(
            f"tensor={degree} with F = {case.d_ff:,}: at most {sig(exact)} over these links "
            f"({sig(rule)} by F W / C)"
        ),
    )


def _mixed(case: _Audit) -> AuditVerdict | None:
    """FSDP and tensor parallelism together on a torus, by the rule for the best such mesh."""
    network = case.placement.slice.chip.network
    fsdp, tensor = case.links(["fsdp"]), case.links(["tensor"])
    if not isinstance(network, Torus) or not fsdp or not tensor:
        return None
    alpha = case.peak / (2 * network.link_oneway)
    axes = [sum(bool(part.size > 1) for part in links[0].parts) for links in (fsdp, tensor)]
    if 0 in axes:
        return None  # between the devices of a chip the rule's links do not come in
    need = float(mixed_limit(alpha, case.d_ff, axes[0], axes[1], "max"))
    both = float(mixed_limit(alpha, case.d_ff, axes[0], axes[1], "sum"))
    return AuditVerdict(
        strategy="fsdp and tensor",
        degree=case.degree(["fsdp", "tensor"]),
        have=case.tokens_per_chip,
        need=need,
        rule_need=need,
        unit="tokens per chip",
        at_least=True,
        rule="B/N > alpha^2 / (M_X M_Y F)",
        source="ch. 5.1.4",
        text=(
            f"{sig(case.tokens_per_chip)} tokens per chip; the best FSDP x tensor mesh over "
            f"{axes[0]} and {axes[1]} physical axes needs {sig(need)}, {sig(both)} where the two "
            "communications do not overlap"
        ),
    )


def _expert(case: _Audit) -> AuditVerdict | None:
    """Two all-to-alls of the tokens, against the experts' forward pass."""
    degree = case.plan.degree("expert")
    if degree == 1 or case.experts == 1:
        return None
    tokens = case.plan.tokens
    groups = case.plan.devices / case.plan.degree("stage") / degree
    size = dtype_bytes(case.plan.dtypes.compute) * tokens / groups * case.cfg.d_model
    links, math = case.links(["expert"]), case.forward_math(tokens)

    def width(mode: Mode) -> float:
        moved = ragged_all_to_all(degree * size, links, fan_out=case.chosen, mode=mode)
        return case.d_ff * 2 * float(moved.bandwidth) / math

    exact, chip = width("exact"), case.placement.slice.chip
    rule = width("asymptotic")
    if isinstance(chip.network, Switched) and degree > chip.network.domain:
        alpha = alphas(chip, case.plan.dtypes.compute).scale_out
        rule = float(expert_d_ff(alpha, case.chosen, degree, chip.network.domain))
    return AuditVerdict(
        strategy="expert",
        degree=degree,
        have=float(case.d_ff),
        need=exact,
        rule_need=rule,
        unit="width F",
        at_least=True,
        rule="F > alpha (Z - d) min(dk/Z, 1) / k",
        source="ch. 12, Expert Parallelism",
        text=(
            f"expert={degree} with {case.chosen} of {case.experts} experts of F = {case.d_ff:,}: "
            f"compute-bound from F = {sig(exact)} for random picks ({sig(rule)} by the rule)"
        ),
    )


def _stage(case: _Audit) -> AuditVerdict | None:
    """Activations passed between stages on the critical path, against the forward pass."""
    plan, stages = case.plan, case.plan.degree("stage")
    if stages == 1:
        return None
    per_hop = (
        dtype_bytes(plan.dtypes.compute)
        * case.cfg.d_model
        * plan.tokens
        / plan.microbatches
        * stages
        / plan.devices
        * (1 if plan.sequence_parallel else plan.degree("tensor"))
    )
    hops = plan.microbatches + stages - 2
    seconds = hops * float(permute(per_hop, case.links(["stage"])).bandwidth)
    math = case.forward_math(plan.tokens) * max(plan.layers_per_stage)
    bubble = float(pipeline_bubble(stages, plan.microbatches * plan.virtual_stages))
    return AuditVerdict(
        strategy="stage",
        degree=stages,
        have=seconds / math,
        need=1.0,
        rule_need=1.0,
        unit="transfers over math",
        at_least=False,
        rule="(N_MB + K - 2) 2BD / (W N_MB) < T_math",
        source="ch. 12, Pipeline Parallelism",
        text=(
            f"stage={stages}: transfers take {seconds / math:.1%} of the MLPs' forward math; with "
            f"{plan.microbatches} microbatches the bubble is {bubble:.0%} of the step by (K-1)/"
            "(M+K-1) unless the schedule fills it; gradients wait for the last microbatch"
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PlanAudit(Record):
    """A plan held against the book's rules."""

    compute_bound: bool
    """Whether all of its strategies are compute-bound."""
    tokens_per_chip: float
    """Tokens of a step per chip in use."""
    verdicts: Sequence[AuditVerdict]
    """Each strategy of the plan."""


def audit_result(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> PlanAudit:
    """The verdicts on a plan of this slice."""
    verdicts = audit(plan, cfg, piece)
    return PlanAudit(
        compute_bound=compute_bound(verdicts),
        tokens_per_chip=plan.tokens / (prod(plan.box) * plan.slices),
        verdicts=verdicts,
    )
