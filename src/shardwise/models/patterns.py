"""Which kind of mixer and of MLP each layer has, by the rules that config classes use.

Every rule takes a Reader and the number of layers, and returns one word per layer: for mixers
"full", "window", "chunk", "linear", "conv", "cross"; for MLPs "dense" or "sparse".
"""

from collections.abc import Callable

from shardwise.models.reader import Reader

Rule = Callable[[Reader, int], list[str]]

MIXER_WORDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "indexed_attention": "full",
    "linear_attention": "linear",
    "mamba": "linear",
    "conv": "conv",
    "hybrid": "full",
    "hybrid_sliding": "window",
}
MLP_WORDS = {"dense": "dense", "sparse": "sparse"}


def all_full(r: Reader, layers: int) -> list[str]:
    """Full attention everywhere."""
    return ["full"] * layers


def one_window(r: Reader, layers: int) -> list[str]:
    """A `sliding_window` other than null holds for every layer (Mistral, Phi-3)."""
    return ["window" if r.get("sliding_window") is not None else "full"] * layers


def switched_window(r: Reader, layers: int) -> list[str]:
    """Qwen2, Qwen3: `use_sliding_window` lets the layers from `max_window_layers` on slide."""
    listed = _listed(r, layers)
    if not r.flag("use_sliding_window") or r.get("sliding_window") is None:
        return listed or ["full"] * layers
    first = r.count("max_window_layers")
    return listed or ["window" if i >= first else "full" for i in range(layers)]


def switched_window_even(r: Reader, layers: int) -> list[str]:
    """Qwen2-MoE: with `use_sliding_window`, even layers below `max_window_layers` slide."""
    if not r.flag("use_sliding_window"):
        return ["full"] * layers
    first = r.count("max_window_layers")
    return ["window" if i % 2 == 0 and i < first else "full" for i in range(layers)]


def every(period_key: str, other: str) -> Rule:
    """Full attention in every `period_key`-th layer, `other` between; `layer_types` overrides."""

    def rule(r: Reader, layers: int) -> list[str]:
        if listed := _listed(r, layers):
            return listed
        period = r.size(period_key)
        return [other if (i + 1) % period else "full" for i in range(layers)]

    return rule


def nth(period: int | str, place: int, there: str, elsewhere: str, key: str = "") -> Rule:
    """`there` in the layers whose index leaves `place` over `period`, a number or the key that says
    it, unless `layer_types` lists the kinds or `key` the layers that are `elsewhere`."""

    def rule(r: Reader, layers: int) -> list[str]:
        if listed := _listed(r, layers):
            return listed
        others = r.integers(key) if key else None
        if others is not None:
            return [elsewhere if i in others else there for i in range(layers)]
        every = r.size(period) if isinstance(period, str) else period
        return [there if i % every == place else elsewhere for i in range(layers)]

    return rule


def at(period_key: str, place_key: str, there: str, elsewhere: str) -> Rule:
    """`there` in the layers whose index leaves `place_key` over `period_key` (Jamba)."""

    def rule(r: Reader, layers: int) -> list[str]:
        period, place = r.size(period_key), r.count(place_key)
        return [there if i % period == place else elsewhere for i in range(layers)]

    return rule


def windows_from(r: Reader, layers: int) -> list[str]:
    """dots.llm1: the layers from `max_window_layers` on slide, where there is a window."""
    first = r.count("max_window_layers") if r.get("sliding_window") is not None else layers
    return _listed(r, layers) or ["window" if i >= first else "full" for i in range(layers)]


def listed_or_window(r: Reader, layers: int) -> list[str]:
    """Ministral: `layer_types`, else the window everywhere."""
    return _listed(r, layers) or one_window(r, layers)


def prefix_windows(r: Reader, layers: int) -> list[str]:
    """Command A with experts: the first dense layers count by a period of their own."""
    if listed := _listed(r, layers):
        return listed
    first = r.count("first_k_dense_replace")
    own, rest = r.size("prefix_dense_sliding_window_pattern"), r.size("sliding_window_pattern")
    places = [(i + 1) % own if i < first else (i - first + 1) % rest for i in range(layers)]
    return ["window" if place else "full" for place in places]


def griffin(r: Reader, layers: int) -> list[str]:
    """RecurrentGemma: `block_types`, a short list that repeats."""
    words, said = {"recurrent": "linear", "attention": "window"}, r.get("block_types")
    if not isinstance(said, list) or not said or any(word not in words for word in said):
        raise r.error("block_types", said, f"it must be a list of {' and '.join(words)}")
    return [words[said[i % len(said)]] for i in range(layers)]


def listed_only(r: Reader, layers: int) -> list[str]:
    """`layer_types` says it; a config without the list is refused."""
    listed = r.words("layer_types", MIXER_WORDS, layers)
    if listed is None:
        raise r.error("layer_types", None, "it must be a list with one entry per layer")
    return listed


def windows_named(r: Reader, layers: int) -> list[str]:
    """EXAONE 4: `layer_types`, else a pattern such as "LLLG" or the period of global layers."""
    if listed := _listed(r, layers):
        return listed
    pattern = r.get("sliding_window_pattern")
    if r.get("sliding_window") is None:
        return ["full"] * layers
    if isinstance(pattern, str) and pattern and not set(pattern) - set("LG"):
        return ["window" if pattern[i % len(pattern)] == "L" else "full" for i in range(layers)]
    period = r.size("sliding_window_pattern")
    return ["window" if (i + 1) % period else "full" for i in range(layers)]


def chunks_without_rope(r: Reader, layers: int) -> list[str]:
    """Llama 4: layers with rotary positions see chunks, those without (0) see everything."""
    if listed := _listed(r, layers):
        return listed
    rotary = r.integers("no_rope_layers") or []
    period = r.size("no_rope_layer_interval")
    if rotary and len(rotary) < layers:
        raise r.error("no_rope_layers", rotary, f"it must have {layers} entries, one per layer")
    flags = rotary or [int((i + 1) % period != 0) for i in range(layers)]
    return ["chunk" if flags[i] else "full" for i in range(layers)]


def listed_indices(key: str, there: str, elsewhere: str, absent: str = "") -> Rule:
    """`there` in the layers whose index `key` lists, `elsewhere` in the others; `absent`, where it
    is given, in all layers of a config that lists none."""

    def rule(r: Reader, layers: int) -> list[str]:
        if listed := _listed(r, layers):
            return listed
        places = set(r.integers(key) or [])
        if absent and r.get(key) is None:
            return [absent] * layers
        if any(i >= layers for i in places):
            raise r.error(key, max(places), f"layers are numbered 0 to {layers - 1}")
        return [there if i in places else elsewhere for i in range(layers)]

    return rule


def zeros_and_ones(key: str, zero: str, one: str) -> Rule:
    """One 0 or 1 per layer (MiniMax `attn_type_list`, MiMo-V2 `hybrid_layer_pattern`)."""

    def rule(r: Reader, layers: int) -> list[str]:
        if listed := _listed(r, layers):
            return listed
        return [one if v else zero for v in r.integers(key, layers) or [0] * layers]

    return rule


def all_dense(r: Reader, layers: int) -> list[str]:
    """A dense MLP everywhere."""
    return ["dense"] * layers


def all_sparse(r: Reader, layers: int) -> list[str]:
    """Experts everywhere."""
    return ["sparse"] * layers


def first_dense(r: Reader, layers: int) -> list[str]:
    """DeepSeek, GLM: the first `first_k_dense_replace` are dense, then every
    `moe_layer_freq`-th layer has experts, or those that it flags; `mlp_layer_types` overrides."""
    if listed := r.words("mlp_layer_types", MLP_WORDS, layers):
        return listed
    first = r.count("first_k_dense_replace")
    if isinstance(r.get("moe_layer_freq"), list):
        flags = r.integers("moe_layer_freq", layers) or []
        return ["sparse" if i >= first and v else "dense" for i, v in enumerate(flags)]
    period = r.size("moe_layer_freq")
    return ["sparse" if i >= first and i % period == 0 else "dense" for i in range(layers)]


def enumerated(r: Reader, layers: int) -> list[str]:
    """Step: `mlp_layer_types`, else experts in the layers that `moe_layers_enum` counts up, a list
    or numbers between commas, else behind the first dense ones."""
    said = r.get("moe_layers_enum")
    if said is None or r.has("mlp_layer_types"):
        return first_dense(r, layers)
    numbers = said.split(",") if isinstance(said, str) else said
    if not isinstance(numbers, list) or not all(str(n).strip().isdecimal() for n in numbers):
        raise r.error("moe_layers_enum", said, "it must be numbers of layers between commas")
    places = {int(n) for n in numbers}
    return ["sparse" if i in places else "dense" for i in range(layers)]


def sparse_step(r: Reader, layers: int) -> list[str]:
    """Qwen MoE: every `decoder_sparse_step`-th layer has experts, less `mlp_only_layers`."""
    step, dense = r.size("decoder_sparse_step"), set(r.integers("mlp_only_layers") or [])
    return ["sparse" if (i + 1) % step == 0 and i not in dense else "dense" for i in range(layers)]


def experts_if_any(r: Reader, layers: int) -> list[str]:
    """Granite 4: experts everywhere, or nowhere where their number is 0."""
    return ["sparse" if r.count("num_experts") else "dense"] * layers


def sparse_if(key: str) -> Rule:
    """Experts everywhere where `key` is true, else nowhere (Doge)."""
    return lambda r, layers: ["sparse" if r.flag(key) else "dense"] * layers


def experts_between(r: Reader, layers: int) -> list[str]:
    """ERNIE 4.5: experts from `moe_layer_start_index` to `moe_layer_end_index` (-1: the last), in
    every `moe_layer_interval`-th layer."""
    first, end, period = r.count("moe_first"), r.get("moe_end"), r.size("moe_layer_interval")
    last = layers - 1 if end in (None, -1) else r.count("moe_end")
    return [
        "sparse" if (i + 1) % period == 0 and first <= i <= last else "dense" for i in range(layers)
    ]


def experts_at(period_key: str, offset_key: str) -> Rule:
    """Jamba: experts where the index leaves `offset_key` over `period_key`."""

    def rule(r: Reader, layers: int) -> list[str]:
        period, offset = r.size(period_key), r.count(offset_key)
        return ["sparse" if i % period == offset else "dense" for i in range(layers)]

    return rule


def interleaved(r: Reader, layers: int) -> list[str]:
    """Llama 4: every `interleave_moe_layer_step`-th layer has experts; `moe_layers` overrides."""
    places = r.integers("moe_layers")
    if places is not None:
        return ["sparse" if i in set(places) else "dense" for i in range(layers)]
    step = r.size("interleave_moe_layer_step")
    return ["sparse" if (i + 1) % step == 0 else "dense" for i in range(layers)]


def sparse_flags(r: Reader, layers: int) -> list[str]:
    """MiMo-V2: `mlp_layer_types`, else one flag per layer in `moe_layer_freq`."""
    if listed := r.words("mlp_layer_types", MLP_WORDS, layers):
        return listed
    flags = r.integers("moe_layer_freq", layers)
    return ["sparse" if v else "dense" for v in flags or [0] + [1] * (layers - 1)]


def _listed(r: Reader, layers: int) -> list[str] | None:
    return r.words("layer_types", MIXER_WORDS, layers) if "layer_types" in r.defaults else None
