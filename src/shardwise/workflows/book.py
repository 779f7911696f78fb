"""The book's rules of thumb beside a searched plan: X_opt by edition, thresholds per chip."""

from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Torus, chip_ids, load_chip
from shardwise.models.specs import Mlp, Moe
from shardwise.planner.book_rules import book_mesh, data_limit, mixed_limit, tensor_limit
from shardwise.planner.training import TrainAnswer
from shardwise.units import sig

_EDITIONS = (("latest", "max"), ("first", "sum"))
"""Edition and how it adds up FSDP and tensor communication (errata 0.1, 0.2)."""


def book_result(answer: TrainAnswer) -> dict[str, Any]:
    """What ch. 5 says about this batch on these chips: for a dense model on a 3-D torus the
    FSDP x tensor degrees of both editions, else the thresholds that apply."""
    network = answer.piece.chip.network
    if any(isinstance(layer.mlp, Moe) for layer in answer.cfg.groups):
        return {"lines": []}  # the rules of ch. 5 are for dense models
    widths = {layer.mlp.d_ff for layer in answer.cfg.groups if isinstance(layer.mlp, Mlp)}
    if not isinstance(network, Torus) or len(network.pod) != 3 or len(widths) != 1:
        return {"lines": []}
    d_ff = widths.pop()
    alpha = _book_alpha(answer)
    # The book writes 4Mi tokens as 4.19e6; three digits keep its figures.
    tokens = float(f"{answer.plan.tokens:.3g}")
    meshes = {}
    for edition, _ in _EDITIONS:
        try:
            meshes[edition] = book_mesh(
                batch_tokens=tokens,
                d_ff=d_ff,
                chips=answer.piece.chips,
                alpha=alpha,
                edition=edition,  # type: ignore[arg-type]
            )
        except BadRequest:
            continue  # the first edition's rule has no answer below its own threshold
    per_chip = answer.plan.tokens / answer.piece.chips
    limits = {
        "data_tokens_per_chip": float(data_limit(alpha, 3)),
        "tensor_degree": float(tensor_limit(alpha, d_ff)),
        **{
            f"mixed_tokens_per_chip_{combine}": float(mixed_limit(alpha, d_ff, combine=combine))  # type: ignore[arg-type]
            for _, combine in _EDITIONS
        },
    }
    return {
        "x": {e: m.x for e, m in meshes.items()},
        "mesh": {e: {"fsdp": m.fsdp, "tensor": m.tensor} for e, m in meshes.items()},
        "limits": limits,
        "lines": [_mesh_line(answer, meshes), _limit_line(per_chip, limits)],
    }


def _book_alpha(answer: TrainAnswer) -> float:
    """Peak over both directions of one link, by the book's constants where it has the chip."""
    chip = answer.piece.chip
    if chip.id in chip_ids():
        chip = load_chip(chip.id, constants="book")
    assert isinstance(chip.network, Torus)
    return chip.peak(answer.plan.dtypes.compute) / (2 * chip.network.link_oneway)


def _mesh_line(answer: TrainAnswer, meshes: dict[str, Any]) -> str:
    degrees = " or ".join(f"{sig(m.x, 4)} ({e} edition)" for e, m in meshes.items())
    mesh = meshes["latest"]
    idle = answer.piece.chips - mesh.chips
    return (
        f"X_opt {degrees} with the book's constants, so fsdp={mesh.fsdp} x "
        f"tensor={mesh.tensor} = {mesh.chips:,} chips, "
        f"{idle:,} of {answer.piece.chips:,} idle (ch. 5.1.4, 6.3)"
    )


def _limit_line(per_chip: float, limits: dict[str, float]) -> str:
    return (
        f"{sig(per_chip)} tokens per chip; FSDP alone over 3 axes needs "
        f"{sig(limits['data_tokens_per_chip'])} to be compute-bound, FSDP x tensor "
        f"{sig(limits['mixed_tokens_per_chip_max'])} (latest edition) or "
        f"{sig(limits['mixed_tokens_per_chip_sum'])} (first edition)"
    )
