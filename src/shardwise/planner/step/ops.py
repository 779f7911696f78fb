"""Short ways to write down one op; its phase and body are set where they are not known yet."""

from shardwise.models.activations import ActivationKind
from shardwise.work import Collective, Op, Quantity

Yield = tuple[ActivationKind, Op]
"""An op of the forward pass, and the kind of activation that it yields."""


def make_op(
    op_id: str,
    component: str,
    op_class: str,
    *,
    phase: str = "",
    hbm_bytes: Quantity = 0.0,
    hbm_least: Quantity = 0.0,
    **fields,
) -> Op:
    """An op whose name is its id. `hbm_least` of its HBM bytes are of the step's arguments and
    results; the others are activations, which may stay on the chip."""
    return Op(
        id=op_id,
        name=op_id,
        phase=phase,
        component=component,
        op_class=op_class,  # type: ignore[arg-type]
        hbm_bytes=hbm_bytes,
        on_chip_bytes=hbm_bytes - hbm_least,
        **fields,
    )


def exchange(
    op_id: str,
    kind: str,
    component: str,
    axes: tuple[str, ...],
    size: Quantity,
    *,
    fan_out: Quantity | None = None,
    **fields,
) -> Op:
    """A collective of `size` = V bytes over `axes`, on the network of the first of them."""
    return make_op(
        op_id,
        component,
        "collective",
        collective=Collective(kind=kind, axes=axes, bytes=size, fan_out=fan_out),  # type: ignore[arg-type]
        stream=stream_of(axes),
        **fields,
    )


def stream_of(axes: tuple[str, ...]) -> str:
    """The network stream of a collective: one per leading mesh axis."""
    return f"net:{axes[0]}"
