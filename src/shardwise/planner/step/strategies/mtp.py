"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2).

Module k takes the stream of the module before and the embedding of a later token, norms both,
projects the 2D of them to D, runs one more layer (of the model's last kind), and predicts with the
model's own final norm and head, which it shares like the embedding. It stands on the last stage.
"""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.models import ModelConfig, Parameter
from shardwise.models.parameter import LayerPlace, TensorRows
from shardwise.models.parameters import layer_rows
from shardwise.models.specs import Layer

PREFIX = "mtp."
"""How the names of its rows begin."""


def last_layer(cfg: ModelConfig) -> Layer:
    """The kind of layer that a module runs."""
    return cfg.groups[cfg.pattern[-1]]


def mtp_rows(cfg: ModelConfig, modules: int) -> tuple[Parameter, ...]:
    """TensorRows of all modules; they belong to the end of the model, not to a layer group."""
    place = LayerPlace(d_model=cfg.d_model)
    t = TensorRows.at(place, "mtp", C=2 * cfg.d_model)
    t.norm("norm.stream", "D")
    t.norm("norm.embedding", "D")
    t.matmul("projection", "CD")
    rows = [*t.rows, *layer_rows(place, last_layer(cfg))]
    return tuple(
        replace(row, name=f"{PREFIX}{module}.{row.name}")
        for module in range(modules)
        for row in rows
    )


def rows_of(rows: Sequence[Parameter], module: int) -> list[Parameter]:
    """The matrices of one module's layer."""
    mine = [r for r in rows if r.name.startswith(f"{PREFIX}{module}.") and r.role == "matmul"]
    return [r for r in mine if r.component != "mtp"]
