"""Parameter counts: sums over the one parameter table."""

from shardwise.models.config import ModelConfig
from shardwise.models.parameters import parameters
from shardwise.units import dtype_bytes

TOWERS = ("vision", "audio")


def params_by_component(cfg: ModelConfig) -> dict[str, int]:
    """Stored parameters by component, tied tensors once, components without any left out.

    Components: embedding, embedding_per_layer, attention, linear_attention, mlp_dense,
    routed_experts, shared_experts, router, moe_latent, norms, lm_head, other, vision, audio.
    """
    sums: dict[str, int] = {}
    for p in parameters(cfg):
        if p.params:
            sums[p.component] = sums.get(p.component, 0) + p.params
    return sums


def params_total(cfg: ModelConfig) -> int:
    """All stored parameters, towers included. Buffers and multi-token-prediction layers are not."""
    return sum(p.params for p in parameters(cfg))


def params_text(cfg: ModelConfig) -> int:
    """Stored parameters without vision and audio towers."""
    return sum(p.params for p in parameters(cfg) if p.component not in TOWERS)


def params_active(cfg: ModelConfig) -> int:
    """Parameters of the text model less the routed experts that a token does not choose.

    The embedding and the head are included, each once.
    """
    active = sum(p.active_params for p in parameters(cfg) if p.component not in TOWERS)
    return int(active)


def weight_bytes(cfg: ModelConfig, dtype: str | None = None) -> float:
    """Bytes of the stored weights: all in `dtype`, or as the checkpoint stores each component."""
    if dtype is not None:
        return params_total(cfg) * dtype_bytes(dtype)
    return sum(
        p.params * dtype_bytes(weight_dtype(cfg, p.component, p.name)) for p in parameters(cfg)
    )


def weight_dtype(cfg: ModelConfig, component: str, name: str = "") -> str:
    """The dtype that rows of one component are stored in, or the one of that name."""
    if name and name in cfg.weight_dtypes:
        return cfg.weight_dtypes[name]
    return cfg.weight_dtypes.get(component, cfg.weight_dtypes.get("", "bf16"))
