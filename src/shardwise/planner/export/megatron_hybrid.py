"""Models of Megatron-LM whose layers a pattern says, a letter each: `M` a Mamba-2, `*` attention,
`-` an MLP, `E` experts.

After validate_args of megatron/training/arguments.py and hybrid_layer_allocation.py (megatron-core
0.19.2): `|` ends a pipeline's chunk, `/` begins what predicts one more token, and the former ratios
(`--hybrid-attention-ratio`, `--hybrid-mlp-ratio`) spread layers evenly.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadRequest, Gives, Lacking, shown
from shardwise.models import ModelConfig, load_model
from shardwise.models.zoo import zoo_names
from shardwise.planner.export.flags import Flags
from shardwise.planner.export.megatron_shape import is_gated, vocabulary

PATTERN = "--hybrid-layer-pattern"
OVERRIDES = "--hybrid-override-pattern"
"""The pattern's former name."""
RATIOS = ("--hybrid-attention-ratio", "--hybrid-mlp-ratio")
_LETTERS = "M*-E"
_PADDED = 1024
"""As in megatron_shape.py."""
_ENTRIES = "131072"
"""The vocabulary of an example where no argument says one: Nemotron-H's."""
_MOST = 10_000
"""As many layers as a config.json may have (`models/reader.py`)."""


def with_layers(given: Mapping[str, str]) -> dict[str, str]:
    """The arguments with the number of layers that a pattern has, and its chunks as a layout.

    >>> with_layers({"--hybrid-layer-pattern": "M-M*|M-/MM", "--num-layers": "9"})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'--hybrid-layer-pattern': 'M-M*M-', '--num-layers': '6',
     '--pipeline-model-parallel-layout': 't*4|t*2', '--mtp-num-layers': '1'}
    """
    found = {flag: value for flag, value in given.items() if flag not in RATIOS}
    if OVERRIDES in given:
        found.setdefault(PATTERN, given[OVERRIDES])
    elif any(flag in given for flag in RATIOS) and PATTERN not in given:
        found[PATTERN] = _of_ratios(Flags("megatron", given))
    if "$" in found.get(PATTERN, "$"):
        return dict(given)
    main, *predicted = found[PATTERN].strip("'\"").split("/")
    chunks = main.split("|")
    found |= {PATTERN: "".join(chunks), "--num-layers": str(sum(map(len, chunks)))}
    if len(chunks) > 1:
        sizes = "|".join(f"t*{len(chunk)}" for chunk in chunks)
        found["--pipeline-model-parallel-layout"] = sizes
    return found | ({"--mtp-num-layers": str(len(predicted))} if predicted else {})


def _of_ratios(given: Flags) -> str:
    """The pattern that Megatron makes of two ratios.

    >>> _of_ratios(Flags("megatron", {"--num-layers": "8", "--hybrid-attention-ratio": "0.25"}))
    'MM*MM*MM'
    """
    layers = given.count("--num-layers")
    ratios = [given.number(flag, "0", float) for flag in RATIOS]
    if min(ratios) < 0 or sum(ratios) > 1 or layers > _MOST:
        said = f"{RATIOS[0]} is {ratios[0]:g} and {RATIOS[1]} {ratios[1]:g}, of {layers:,} layers"
        rule = f"write shares whose sum is at most 1, of at most {_MOST:,} layers"
        raise BadRequest(f"megatron: {said}; {rule}")
    attention, mlps = (round(layers * ratio) for ratio in ratios)
    text = "M" * layers
    text = _spread(text, "*", (layers - attention) / (attention + 1)) if attention else text
    return _spread(text, "-", (layers - attention - mlps) / mlps) if mlps else text


def _spread(letters: str, letter: str, each: float) -> str:
    """The letters, of which one becomes `letter` after `each` that stay M."""
    left, found = each, list[str]()
    for before in letters:
        now = letter if before == "M" and left < 0.5 else before
        found.append(now)
        left += 0 if before != "M" else each if now == letter else -1
    return "".join(found)


def hybrid_model(given: Flags) -> str:
    """The model of a pattern: one of the zoo with its layers, else one that is built of them."""
    config = hybrid_config(given)
    built, known = load_model(config), vocabulary(given)
    alike = (name for name in zoo_names() if _same(load_model(name), built, known))
    found = next(alike, None)
    if found is None and known is None:
        raise Lacking(
            "megatron: no known model has these layers, and none can be built without --vocab-size",
            "give --vocab-size, or the model with --model",
            Gives.MODEL,
            config,
        )
    return found or config


def _same(own: ModelConfig, built: ModelConfig, entries: int | None) -> bool:
    alike = own.layers == built.layers and own.d_model == built.d_model
    padded = entries is None or 0 <= entries - own.vocabulary < _PADDED
    return (
        alike
        and padded
        and [*map(own.layer, range(own.layers))] == [*map(built.layer, range(built.layers))]
    )


def hybrid_config(given: Flags) -> str:
    """The model that a pattern describes, as `load_model` reads one that is written out."""
    pattern = given.get(PATTERN)
    if {*pattern} - {*_LETTERS} or is_gated(given) or not pattern:
        flag = OVERRIDES if OVERRIDES in given else PATTERN
        beside = " beside MLPs with a gate" if is_gated(given) else ""
        raise Lacking(
            f"megatron: {flag} is {shown(pattern)}{beside}; a model is built of M, *, - and E, of "
            "MLPs without a gate",
            "give the model with --model",
            Gives.MODEL,
        )
    values = _attention(given) | _mamba(given) | (_experts(given) if "E" in pattern else {})
    values |= {
        "num_hidden_layers": len(pattern),
        "hybrid_override_pattern": f"'{pattern}'",
        "hidden_size": given.count("--hidden-size"),
        "vocab_size": given.count("--vocab-size", str(vocabulary(given) or _ENTRIES)),
        "tie_word_embeddings": "--untie-embeddings-and-output-weights" not in given,
    }
    return f"NemotronHForCausalLM({', '.join(f'{key}={value}' for key, value in values.items())})"


def _attention(given: Flags) -> dict[str, Any]:
    hidden, heads = given.count("--hidden-size"), given.count("--num-attention-heads")
    grouped = "--group-query-attention" in given and "--num-query-groups" in given
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": given.count("--num-query-groups") if grouped else heads,
        "head_dim": given.count("--kv-channels", str(max(hidden // heads, 1))),
        "intermediate_size": given.count("--ffn-hidden-size", str(4 * hidden)),
    }


def _mamba(given: Flags) -> dict[str, Any]:
    """Its defaults are transformer_config.py's: as many heads as twice the hidden size has."""
    width = given.count("--mamba-head-dim", "64")
    heads = max(2 * given.count("--hidden-size") // width, 1)
    return {
        "mamba_num_heads": given.count("--mamba-num-heads", str(heads)),
        "mamba_head_dim": width,
        "n_groups": given.count("--mamba-num-groups", "8"),
        "ssm_state_size": given.count("--mamba-state-dim", "128"),
        "conv_kernel": 4,
    }


def _experts(given: Flags) -> dict[str, Any]:
    wide = given.count("--ffn-hidden-size", str(4 * given.count("--hidden-size")))
    shared = given.number("--moe-shared-expert-intermediate-size", "0")
    return {
        "n_routed_experts": given.count("--num-experts"),
        "num_experts_per_tok": given.count("--moe-router-topk", "2"),
        "moe_intermediate_size": given.count("--moe-ffn-hidden-size", str(wide)),
        "n_shared_experts": int(shared > 0),
        "moe_shared_expert_intermediate_size": shared,
        "moe_latent_size": given.number("--moe-latent-size", "0"),
    }
