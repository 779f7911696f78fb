"""The book's rules of thumb beside a searched plan: X_opt by edition, thresholds by network.

`book_result` is the `book` of `plan train`'s document. Tori get the rules of ch. 5, switched
networks those of ch. 12; a mixture of experts gets the data-parallel thresholds times E/k. Where
the book has two ways to add up communication both stand: "max" (overlapping, its latest edition)
and "sum" (its first).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.book.rules.audit import widths_of
from shardwise.book.rules.gpu import alphas, expert_d_ff, tensor_limit_across
from shardwise.book.rules.training import (
    BookMesh,
    book_mesh,
    data_limit,
    mixed_limit,
    moe_limit,
    tensor_limit,
)
from shardwise.boundary.records import Record, part
from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Switched, Torus
from shardwise.hardware.totals import link_both_ways
from shardwise.models import ModelConfig
from shardwise.planner.evaluate import TrainAnswer
from shardwise.units import sig
from shardwise.work import Quantity

_EDITIONS = (("latest", "max"), ("first", "sum"))
"""Edition and how it adds up FSDP and tensor communication (errata 0.1, 0.2)."""


_MODE = {"x_opt": None, "x_balanced": "sum"}
"""X_opt is the same in both modes; the first edition takes the largest compute-bound degree."""


@dataclass(frozen=True, kw_only=True)
class BookRow(Record):
    """One threshold of the book."""

    name: str
    """Its name."""
    value: float
    """The threshold, in `unit`."""
    unit: str
    """Tokens per chip, chips, or what else it is in."""
    mode: str | None
    """"max" or "sum", the two ways of adding collectives up, where the book has both."""
    have: float | None
    """What the batch has, where that compares."""
    source: str
    """The book's section."""


@dataclass(frozen=True, kw_only=True)
class BookDegrees(Record):
    """A mesh of the book."""

    fsdp: int
    """Degree of FSDP."""
    tensor: int
    """Degree of tensor parallelism."""


@dataclass(frozen=True, kw_only=True)
class BookLimits(Record):
    """Where strategies of a dense model on a torus stop being compute-bound."""

    data_tokens_per_chip: float
    """Tokens per chip that FSDP alone needs over all axes."""
    tensor_degree: float
    """The highest degree of tensor parallelism."""
    mixed_tokens_per_chip_max: float
    """Tokens per chip that FSDP x tensor needs (latest edition)."""
    mixed_tokens_per_chip_sum: float
    """The same (first edition)."""


@dataclass(frozen=True, kw_only=True)
class BookSays(Record):
    """What the book says about a batch on chips."""

    lines: Sequence[str]
    """The rules in words; none where the book has none (full meshes, models without MLPs)."""
    rules: Sequence[BookRow] | None = part()
    """One row for each threshold."""
    x: Mapping[str, float] | None = part()
    """Edition -> the FSDP degree X_opt of a dense model on a torus."""
    mesh: Mapping[str, BookDegrees] | None = part()
    """Edition -> the mesh that follows from that."""
    limits: BookLimits | None = part()
    """The thresholds by name."""


def book_result(answer: TrainAnswer, chip: Chip) -> BookSays:
    """What the book says about this batch on these chips.

    `chip` is the answer's chip read with the book's constants, under the overrides and files that
    the answer's was read with.
    """
    widths = _widths(answer.cfg)
    if not widths or not isinstance(chip.network, Torus | Switched):
        return BookSays(lines=[])
    if isinstance(chip.network, Torus):
        return _torus_result(answer, chip, widths)
    return _switched_result(answer, chip, widths)


def _widths(cfg: ModelConfig) -> list[tuple[int, int, int]]:
    """F, E and k of every kind of MLP; E = k = 1 without experts."""
    found = [widths_of(layer.mlp) for layer in cfg.groups]
    return list(dict.fromkeys(widths for widths in found if widths is not None))


def _row(
    name: str,
    value: Quantity,
    unit: str,
    source: str,
    *,
    have: float | None = None,
    mode: str | None = None,
) -> BookRow:
    return BookRow(name=name, value=float(value), unit=unit, mode=mode, have=have, source=source)


def _sparsity(widths: list[tuple[int, int, int]]) -> tuple[int, int]:
    """E and k of the sparsest MLP, whose weights move for the fewest FLOPs."""
    return max(((e, k) for _, e, k in widths), key=lambda ek: ek[0] / ek[1])


def _torus_result(answer: TrainAnswer, chip: Chip, widths: list[tuple[int, int, int]]) -> BookSays:
    """Ch. 5: thresholds of one axis and all, and for dense MLPs of one width the mixed mesh."""
    dtype, per_chip = answer.plan.dtypes.compute, answer.plan.tokens / answer.piece.chips
    alpha = chip.peak(dtype) / link_both_ways(chip)
    axes = len(chip.network.pod) if isinstance(chip.network, Torus) else 0
    experts, chosen = _sparsity(widths)
    unit, source = "tokens per chip", "ch. 5.1.1 and 5.1.2"
    rows = [
        _row(f"data_{m}_axes", moe_limit(data_limit(alpha, m), experts, chosen), unit, source,
             have=per_chip)
        for m in dict.fromkeys((1, axes))
    ]  # fmt: skip
    rows += _expert_factor(experts, chosen)
    if chip.data_centre is not None:
        limit = data_limit(chip.peak(dtype) / chip.data_centre.chip_oneway)
        each = answer.plan.tokens / answer.piece.count
        limit = moe_limit(limit, experts, chosen)
        rows.append(_row("dcn", limit, "tokens per slice", "ch. 5.1.6", have=each))
    if experts > 1 or len(widths) != 1 or axes < 2:
        return BookSays(rules=rows, lines=[_data_line(rows)])
    d_ff = widths[0][0]
    meshes = _meshes(answer, d_ff, alpha, axes - 1)
    limits = BookLimits(
        data_tokens_per_chip=float(data_limit(alpha, axes)),
        tensor_degree=float(tensor_limit(alpha, d_ff)),
        mixed_tokens_per_chip_max=float(mixed_limit(alpha, d_ff, axes - 1, combine="max")),
        mixed_tokens_per_chip_sum=float(mixed_limit(alpha, d_ff, axes - 1, combine="sum")),
    )
    rows.append(_row("tensor_degree", limits.tensor_degree, "chips", "ch. 5.1.3"))
    mixed = {
        "max": limits.mixed_tokens_per_chip_max,
        "sum": limits.mixed_tokens_per_chip_sum,
    }
    for edition, combine in _EDITIONS:
        limit = mixed[combine]
        rows.append(_row("mixed", limit, unit, "ch. 5.1.4", have=per_chip, mode=combine))
        if edition in meshes:
            name = "x_opt" if edition == "latest" else "x_balanced"
            x = meshes[edition].x
            rows.append(_row(name, x, "FSDP degree", "ch. 5.1.4 and 6.3", mode=_MODE[name]))
    return BookSays(
        x={e: m.x for e, m in meshes.items()},
        mesh={e: BookDegrees(fsdp=m.fsdp, tensor=m.tensor) for e, m in meshes.items()},
        limits=limits,
        rules=rows,
        lines=[
            _mesh_line(answer, meshes),
            _limit_line(per_chip, limits, axes),
            *_dcn_line(answer, rows),
        ],
    )


def _switched_result(
    answer: TrainAnswer, chip: Chip, widths: list[tuple[int, int, int]]
) -> BookSays:
    """Ch. 12: thresholds inside a node and beyond it."""
    assert isinstance(chip.network, Switched)
    dtype, per_chip = answer.plan.dtypes.compute, answer.plan.tokens / answer.piece.chips
    experts, chosen = _sparsity(widths)
    d_ff = max(f for f, e, k in widths if (e, k) == (experts, chosen))
    node, outside = chip.peak(dtype) / chip.network.chip_oneway, None
    if chip.data_centre is not None:
        outside = alphas(chip, dtype).scale_out
    unit, source = "tokens per chip", "ch. 12, Data Parallelism"

    def data(name: str, alpha: float) -> BookRow:
        return _row(name, moe_limit(alpha, experts, chosen), unit, source, have=per_chip)

    rows = [data("data_node", node)]
    tensor = "ch. 12, Tensor Parallelism"
    rows.append(_row("tensor_degree", tensor_limit(node, d_ff), "chips", tensor))
    if outside is not None:
        domain = chip.network.domain
        rows.append(data("data_scale_out", outside))
        across = tensor_limit_across(outside, d_ff, domain)
        rows.append(_row("tensor_degree_across_nodes", across, "chips", tensor))
        if experts > 1:
            wide = expert_d_ff(outside, chosen, experts, domain)
            rows.append(
                _row("expert_width", wide, "F", "ch. 12, Expert Parallelism", have=float(d_ff))
            )
    rows += _expert_factor(experts, chosen)
    return BookSays(rules=rows, lines=[_data_line(rows), _tensor_line(rows, d_ff)])


def _expert_factor(experts: int, chosen: int) -> list[BookRow]:
    if experts == 1:
        return []
    return [_row("moe_factor", experts / chosen, "E/k", "ch. 12, Data Parallelism")]


def _meshes(answer: TrainAnswer, d_ff: int, alpha: float, axes_x: int) -> dict[str, BookMesh]:
    """The FSDP x tensor mesh of one slice, with its share of the batch, by edition."""
    meshes = {}
    for edition, _ in _EDITIONS:
        try:
            meshes[edition] = book_mesh(
                batch_tokens=answer.plan.tokens / answer.piece.count,
                d_ff=d_ff,
                chips=answer.piece.chips_each,
                alpha=alpha,
                axes_x=axes_x,
                edition=edition,  # type: ignore[arg-type]
            )
        except BadRequest:
            continue  # the first edition's rule has no answer below its own threshold
    return meshes


def _mesh_line(answer: TrainAnswer, meshes: dict[str, BookMesh]) -> str:
    degrees = " or ".join(f"{sig(m.x, 4)} ({e} edition)" for e, m in meshes.items())
    mesh = meshes["latest"]
    each = answer.piece.chips_each
    where = " of each slice" if answer.piece.count > 1 else ""
    return (
        f"X_opt {degrees} with the book's constants, so fsdp={mesh.fsdp} x "
        f"tensor={mesh.tensor} = {mesh.chips:,} chips, "
        f"{each - mesh.chips:,} of {each:,} idle{where} (ch. 5.1.4, 6.3)"
    )


def _limit_line(per_chip: float, limits: BookLimits, axes: int) -> str:
    return (
        f"{sig(per_chip)} tokens per chip; FSDP alone over {axes} axes needs "
        f"{sig(limits.data_tokens_per_chip)} to be compute-bound, FSDP x tensor "
        f"{sig(limits.mixed_tokens_per_chip_max)} (latest edition) or "
        f"{sig(limits.mixed_tokens_per_chip_sum)} (first edition)"
    )


def _dcn_line(answer: TrainAnswer, rows: list[BookRow]) -> list[str]:
    dcn = [r for r in rows if r.name == "dcn"]
    if not dcn or answer.piece.count == 1:
        return []
    have, need = sig(dcn[0].have or 0.0), sig(dcn[0].value, 5)
    text = f"{have} tokens per slice; data parallelism between slices needs {need}"
    return [f"{text} to be compute-bound ({dcn[0].source})"]


def _data_line(rows: list[BookRow]) -> str:
    data = [r for r in rows if r.name.startswith("data_")]
    factor = [r.value for r in rows if r.name == "moe_factor"]
    sparse = f", {sig(factor[0])} times a dense model's (E/k)" if factor else ""
    needs = " or ".join(f"{sig(r.value, 4)} ({_WHERE[r.name]})" for r in data)
    return (
        f"{sig(data[0].have or 0.0)} tokens per chip; data parallelism and FSDP alone need {needs} "
        f"to be compute-bound{sparse} ({data[0].source})"
    )


_WHERE = {
    "data_1_axes": "one axis",
    "data_2_axes": "two axes",
    "data_3_axes": "three axes",
    "data_node": "inside a node",
    "data_scale_out": "beyond it",
}


def _tensor_line(rows: list[BookRow], d_ff: int) -> str:
    by = {r.name: r for r in rows}
    across = by.get("tensor_degree_across_nodes")
    beyond = f", {sig(across.value)} over several nodes" if across else ""
    wide = by.get("expert_width")
    experts = f"; experts, one per chip, pay from F = {sig(wide.value)}" if wide else ""
    inside = by["tensor_degree"]
    return (
        f"tensor parallelism with F = {d_ff:,} stays compute-bound up to "
        f"{sig(inside.value)} chips{beyond}{experts} ({inside.source})"
    )
