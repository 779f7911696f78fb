"""From a Hugging Face config.json to a ModelConfig."""

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from shardwise.boundary import read_json, read_toml
from shardwise.errors import BadRequest
from shardwise.models.architectures import (
    ALIASES,
    TEXT_SECTIONS,
    Architecture,
    Relatives,
    architecture_of,
    architectures,
)
from shardwise.models.blocks import Traits, experts, switch
from shardwise.models.config import ModelConfig, Tower
from shardwise.models.extras import model_extras, with_extras
from shardwise.models.numerics_table import read_numerics
from shardwise.models.quantization import weight_dtypes
from shardwise.models.reader import Reader
from shardwise.models.specs import Layer

_ANY = dict.fromkeys(
    ("torch_dtype", "dtype", "quantization_config", "expert_dtype", "embedding_dim")
)
"""Keys that a config of any class may leave out."""
SHAPELESS = re.compile(
    r"architectures|model_type|version|auto_map|_name_or_path|dtype|token|dropout|drop$|_act|"
    r"activation|initializer|_std$|rope|theta|rotary|eps|use_cache|^output_|return_dict|pretraining|"
    r"loss|coef|logit|scal|multiplier|jitter|label|chunk_size_feed|decoder$|cross_attention|prune|"
    r"problem_type|quantization|torchscript|norm_topk|topk_group|n_group|max_position|max_window"
)
"""Keys that say nothing about the shape of a model, by parts of their names."""
_TOWER_KEYS = ("vision_config", "audio_config", "talker_config", "code2wav_config")


def read_config(path: Path, family: str = "") -> ModelConfig:
    """The model in a config.json; raises BadRequest for a file that is not a whole JSON object."""
    raw = raw_config(path)
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return from_hf(raw, name=name, file=str(path), family=family)


def raw_config(path: Path) -> Any:
    """The value in a config.json. Raises BadRequest."""
    return read_json(path, "the model's config", remedy="fetch the model's config.json again")


def from_hf(
    raw: object,
    *,
    name: str,
    file: str = "config.json",
    family: str = "",
    provenance: Mapping[str, str] | None = None,
) -> ModelConfig:
    """The model that a parsed config.json describes.

    `name` is what to call it, `file` what error messages call its source, `family` the class or the
    model type that it is to be read as, whatever it says. The text model of a vision or audio model
    is read from its `text_config`; towers are counted where their shape is
    known, and named in `towers_unread` where not. Raises BadRequest.
    """
    if not isinstance(raw, Mapping):
        kind = type(raw).__name__
        raise BadRequest(f"{file}: it holds a {kind}; a config.json is one object {{...}}")
    raw = _thinker(raw)
    architecture, row = architecture_of(raw, file, family, lambda: relatives(raw))
    return _model(_reader(raw, row, file), raw, architecture, row, name, provenance)


def _thinker(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a model that thinks and talks (Qwen Omni) the part that thinks, beside the others."""
    inner = raw.get("thinker_config")
    if not isinstance(inner, Mapping):
        return raw
    own = {key: value for key, value in raw.items() if key != "thinker_config"}
    return {**inner, **own}


def relatives(raw: Mapping[str, Any]) -> Relatives:
    """Classes that read every key of a config which says something about shape, or all but a few.

    First those that read most of all its keys; of these those of which it lacks the fewest keys
    that no other of the classes has.
    """
    found: dict[str, Reader] = {}
    for name, row in architectures().items():
        with suppress(BadRequest):
            r = replace(_reader(raw, row, ""), missing=None)
            _model(r, raw, name, row, "", None)
            found[name] = r
    unread = {name: _unread(r) for name, r in found.items()}
    fewest = min(map(len, unread.values()), default=0)
    found = {name: r for name, r in found.items() if len(unread[name]) == fewest}
    askers = Counter(key for r in found.values() for key in r.asked)

    def distance(name: str) -> tuple[int, int]:
        asked, given = found[name].asked, found[name].raw.keys()
        return -len(asked & given), sum(askers[key] == 1 for key in asked - given)

    names = sorted(found, key=distance)
    return Relatives(names=names, unread=unread[names[0]] if names else ())


def _unread(r: Reader) -> tuple[str, ...]:
    """The keys of a section that was read which nobody asked for, and which may mean a shape."""
    return tuple(
        key
        for key, value in r.raw.items()
        if key not in r.asked and not SHAPELESS.search(key) and not _says_nothing(key, value)
    )


def _says_nothing(key: str, value: object) -> bool:
    """Whether a key is as good as absent: null, empty, or a switch that every class which has it
    leaves off unless it is told."""
    return value in (None, "", [], {}) or (value is False and key in _off_unless_told())


@cache
def _off_unless_told() -> frozenset[str]:
    usual = [item for row in architectures().values() for item in row.defaults.items()]
    on = {key for key, value in usual if value is not False}
    return frozenset(key for key, value in usual if value is False) - on


def _model(
    r: Reader,
    raw: Mapping[str, Any],
    architecture: str,
    row: Architecture,
    name: str,
    provenance: Mapping[str, str] | None,
) -> ModelConfig:
    """The model, read by the row of its class; all keys that are missing in one complaint."""
    try:
        made = _made(r, raw, architecture, row, name, provenance)
    except BadRequest:
        if not r.missing:
            raise
    else:
        if not r.missing:
            return made
    for size in _STAND_INS:
        with suppress(BadRequest):
            _made(replace(r, stand_in=size), raw, architecture, row, name, provenance)
    raise r.lacking(r.missing)


_STAND_INS = (8, 64)
"""Further sizes to read on with where some are missing: a rule of division stops one of them."""


def _made(
    r: Reader,
    raw: Mapping[str, Any],
    architecture: str,
    row: Architecture,
    name: str,
    provenance: Mapping[str, str] | None,
) -> ModelConfig:
    layers = row.layers(r) if row.layers else r.size("num_hidden_layers")
    stack = _stack(r, row, layers)
    groups = tuple(dict.fromkeys(stack))
    places = {layer: i for i, layer in enumerate(groups)}
    d_model, vocabulary = r.size("hidden_size"), r.size("vocab_size")
    towers, unread = _towers(raw, r, row)
    per_layer = groups[0].per_layer_input
    longest = r.size_or_none("max_position_embeddings")
    rows = r.size(row.position_key) + row.position_offset if row.position_key else 0
    traits = _traits(r, row)
    numerics, not_runnable = read_numerics(r, row.model_type, _words(r, row, layers), stack)
    if numerics is not None:
        numerics = replace(numerics, position_offset=row.position_offset)
    return ModelConfig(
        name=name,
        architecture=architecture,
        model_type=row.model_type,
        d_model=d_model,
        vocabulary=vocabulary,
        groups=groups,
        pattern=tuple(places[layer] for layer in stack),
        tied_embeddings=r.flag("tie_word_embeddings"),
        embedding_dim=r.size_or_none("embedding_dim") or d_model,
        embedding_rows=vocabulary + row.extra_embedding_rows,
        position_rows=rows,
        max_context=longest,
        embedding_norm=row.embedding_norm,
        initial_state=row.initial_state,
        final_norm=switch(r, row.final_norm),
        norm_bias=switch(r, traits.norm_bias),
        head_bias=switch(r, row.head_bias),
        capped_logits=_capped(r, row),
        streams=groups[0].streams,
        mixing=groups[0].mixing,
        extras=model_extras(r, row.sizes, row.extras),
        attention_residual=groups[0].attention_residual,
        per_layer_input=per_layer,
        per_layer_rows=r.size("vocab_size_per_layer_input") if per_layer else 0,
        towers=towers,
        towers_unread=unread,
        read_as=_other_name(raw, architecture),
        weight_dtypes=weight_dtypes(r),
        numerics=numerics,
        not_runnable=not_runnable,
        defaults_source=row.source,
        defaulted=tuple((key, str(value)) for key, value in r.defaulted.items()),
        provenance=provenance or {},
        unread=_unread(r) if _other_name(raw, architecture) else (),
    )


def _capped(r: Reader, row: Architecture) -> bool:
    key = "final_logit_softcapping"
    return r.get(key) is not None if key in r.raw else row.capped_logits


def _reader(raw: Mapping[str, Any], row: Architecture, file: str) -> Reader:
    section = next((key for key in TEXT_SECTIONS if raw.get(key) is not None), "")
    text = raw.get(section)
    nested = isinstance(text, Mapping)
    if text is not None and not nested:
        raise BadRequest(f"{file}: {section} is {text!r}; it must be an object {{...}}")
    return Reader(
        file=file,
        raw=text if nested else raw,
        outer=raw if nested else {},
        keys=row.keys,
        defaults={**_ANY, **row.defaults, **(_text_sizes(row.model_type) if nested else {})},
        defaults_source=row.source,
        missing={},
        path=f"{section}." if nested else "",
    )


@cache
def _text_sizes(model_type: str) -> Mapping[str, Any]:
    """Sizes that the text section of a wrapper may leave out."""
    return read_toml(Path(__file__).parent / "data" / "text_sizes.toml", "the table").get(
        model_type, {}
    )


def _other_name(raw: Mapping[str, Any], architecture: str) -> str:
    """The class that a config names, where another one reads it."""
    names = raw.get("architectures")
    said = names[0] if isinstance(names, list) and names else architecture
    return "" if ALIASES.get(said, said) == architecture else str(said)


def _traits(r: Reader, row: Architecture) -> Traits:
    return row.traits if isinstance(row.traits, Traits) else row.traits(r)


def _stack(r: Reader, row: Architecture, layers: int) -> list[Layer]:
    return with_extras(r, row.sizes, row.extras, _blocks(r, row, layers))


def _blocks(r: Reader, row: Architecture, layers: int) -> list[Layer]:
    if row.stack is not None:
        return row.stack(r, layers)
    t = _traits(r, row)
    mixers, mlps = row.mixers(r, layers), row.mlps(r, layers)
    mixer_of = {kind: row.mixer(r, kind, t) for kind in _kinds(mixers, row.mixer_list)}
    mlp_of = {
        kind: experts(r, t) if kind == "sparse" else row.mlp(r, t)
        for kind in _kinds(mlps, row.mlp_list)
    }
    mixer = row.mixer_list(r, mixers, t) if row.mixer_list else [mixer_of[k] for k in mixers]
    mlp = row.mlp_list(r, mlps, t) if row.mlp_list else [mlp_of[k] for k in mlps]
    streams = r.size(row.streams_key) if row.streams_key else 1
    norm_bias, parallel = switch(r, t.norm_bias), switch(r, t.parallel)
    made = {
        key: Layer(
            mixer=key[0],
            mlp=key[1],
            norms=t.norms,
            norm_bias=norm_bias,
            parallel=parallel,
            streams=streams,
            streams_mixed=row.streams_mixed,
            mixing=row.mixing,
            cross_gates=key[0].kind == "cross",
            residual_scales=t.residual_scales,
        )
        for key in dict.fromkeys(zip(mixer, mlp, strict=True))
    }
    return [made[key] for key in zip(mixer, mlp, strict=True)]


def _words(r: Reader, row: Architecture, layers: int) -> list[str]:
    return ["full"] * layers if row.stack is not None else row.mixers(r, layers)


def _kinds(kinds: list[str], replaced: object) -> list[str]:
    return [] if replaced else list(dict.fromkeys(kinds))


def _towers(
    raw: Mapping[str, Any], text: Reader, row: Architecture
) -> tuple[tuple[Tower, ...], tuple[str, ...]]:
    towers, unread = [], []
    for key in _TOWER_KEYS:
        section = raw.get(key)
        if section is None:
            continue
        if not isinstance(section, Mapping):
            raise BadRequest(f"{text.file}: {key} is {section!r}; it must be an object {{...}}")
        if key in row.towers:
            r = text.within(section, f"{key}.", row.tower_defaults)
            towers.append(row.towers[key](r, text))
        else:
            unread.append(key)
    return tuple(towers), tuple(unread)
