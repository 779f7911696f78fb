"""Which model an export is for: the one of the zoo that would be written with the same flags.

Nothing is looked up by a name: the flags of shape must be equal, and of several models with one
shape that is taken which has most other flags in common. Megatron's arguments describe a model
that nobody knows as well: it is built of them (`megatron_shape.py`).
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from shardwise.errors import BadRequest, Gives, Lacking, shown
from shardwise.models import ModelConfig, load_model, params_total
from shardwise.models.specs import Moe
from shardwise.models.zoo import of_hub, zoo_names
from shardwise.planner.export import maxtext_model, maxtext_read, megatron_model, megatron_read
from shardwise.planner.export.flags import Flags, arguments_of
from shardwise.planner.export.jax_trainers import HUB
from shardwise.planner.export.maxtext import written
from shardwise.planner.export.megatron_hybrid import PATTERN, hybrid_model
from shardwise.planner.export.megatron_shape import config_of, same_shape, shape_of
from shardwise.planner.export.megatron_yaml import RECIPES
from shardwise.planner.export.torchtitan_read import said_model
from shardwise.planner.export.trainer import MODEL, given_of, model_named
from shardwise.plans.software.features import features
from shardwise.plans.software.maxtext import MAXTEXT
from shardwise.plans.software.maxtext_models import named_model, snapshot
from shardwise.plans.software.megatron import MEGATRON
from shardwise.plans.software.torchtitan import flavor_of

Written = Callable[[ModelConfig], Mapping[str, Any]]

MAXTEXT_SHAPE = (
    *("base_num_decoder_layers", "base_emb_dim", "base_num_query_heads", "base_num_kv_heads"),
    *("base_mlp_dim", "vocab_size", "head_dim", "num_experts", "base_moe_mlp_dim"),
    *("q_lora_rank", "kv_lora_rank", "decoder_block", "num_experts_per_tok", "shared_experts"),
    "first_num_dense_layers",
)
MEGATRON_SHAPE = (
    *("--num-layers", "--hidden-size", "--num-attention-heads", "--num-query-groups"),
    *("--ffn-hidden-size", "--vocab-size", "--kv-channels", "--num-experts"),
    *("--moe-ffn-hidden-size", "--q-lora-rank", "--kv-lora-rank", "--add-qkv-bias"),
    "--qk-layernorm",
)


def of_maxtext(text: str) -> str | None:
    """The model of MaxText's flags; BadRequest for a `model_name` that is not MaxText's."""
    if wrong := maxtext_read.unknown_model(text):
        raise Lacking(str(wrong), "give the model with --model", Gives.MODEL)
    given = dict(maxtext_read.given_flags(text).given)
    if hub := given.get(HUB):
        return _of_hub(HUB, hub)
    if (name := given.get("model_name")) in snapshot()["models"]:
        for known in zoo_names():
            if named_model(load_model(known)) == name:
                return known
        if given.get("override_model_config") != "true":  # else MaxText takes other numbers for it
            given = given | {k: written(v) for k, v in snapshot()["models"][name].items()}
    found = _alike(given, maxtext_model.model_flags, MAXTEXT_SHAPE, MAXTEXT.builds or ())
    if found is None and (shape := _of_base(given)):
        return config_of(Flags("megatron", shape))
    if found is None:
        said = [key for key in (*MAXTEXT_SHAPE, "global_parameter_scale") if key in given]
        raise Lacking(
            f"no known model has the text's {', '.join(said) or 'defaults, without a model_name'}",
            "give it with --model",
            Gives.MODEL,
        )
    return found


def _of_base(given: Mapping[str, str]) -> dict[str, str] | None:
    """Megatron's arguments of the model that MaxText's flags make of its base one, a dense model of
    Llama's blocks; None where they say nothing of it, or other blocks."""
    said = {
        key: given[key] for key in (*maxtext_read.BASE, "global_parameter_scale") if key in given
    }
    plain = given.get("decoder_block", "llama2") in ("llama2", "default", "mistral")
    if not said or not plain or given.get("num_experts", "1") != "1":
        return None
    own = {**maxtext_read.BASE, **said}
    tied = given.get("logits_via_embedding") == "true"
    return {
        "--num-layers": own["base_num_decoder_layers"],
        "--hidden-size": own["base_emb_dim"],
        "--num-attention-heads": own["base_num_query_heads"],
        "--group-query-attention": "",
        "--num-query-groups": own["base_num_kv_heads"],
        "--ffn-hidden-size": own["base_mlp_dim"],
        "--kv-channels": own["head_dim"],
        "--vocab-size": own["vocab_size"],
        "--swiglu": "",
        "--disable-bias-linear": "",
        **({} if tied else {"--untie-embeddings-and-output-weights": ""}),
    }


_UNSAID = {"--rotary-base": "10000"}
"""What Megatron takes where a text leaves it out (arguments.py), of flags that tell apart models of
one shape."""


def of_megatron(text: str) -> str | None:
    """The model of Megatron's arguments: one of the zoo with their shape, else one that is built of
    it; None where they do not say the shape."""
    return megatron_named(megatron_read.parsed(text))


def megatron_named(given: Flags) -> str | None:
    """As `of_megatron`, of the arguments."""
    if PATTERN in given and "--hidden-size" in given:
        return hybrid_model(given)
    if any(flag not in given for flag in MEGATRON_SHAPE[:3]):
        return _of_recipe(given)
    shape, found = shape_of(given), None
    for name in zoo_names():
        cfg = load_model(name)
        if not features(cfg) <= set(MEGATRON.builds or ()) or cfg.layers != shape["layers"]:
            continue
        own = {k: written(v) for k, v in megatron_model.model_arguments(cfg).items()}
        if not same_shape(shape, shape_of(Flags("megatron", own))):
            continue
        said = {**_UNSAID, **given.given}
        common = sum(_same(value, said.get(flag)) for flag, value in own.items())
        if found is None or common > found[0]:
            found = (common, name)
    return found[1] if found else config_of(given)


def _of_recipe(given: Flags) -> str | None:
    """The model of the recipe that is named, or on Hugging Face."""
    named = [flag for flag in RECIPES if flag in given]
    words = [_RECIPE.sub("", given.given[flag]) for flag in named]
    alike = {re.sub(r"\W", "", name): name for name in zoo_names()}
    found = (model_named(word) or alike.get(re.sub(r"[\W_]", "", word.lower())) for word in words)
    known = next(filter(None, found), None)
    for flag in named if known is None else ():
        given.get(flag)  # which may be a variable of the caller
    return known


_RECIPE = re.compile(r"(_(pretrain|sft|peft|lora|dora|finetune|config|\d+gpu))+$")
"""The end of a recipe's name that says what it does with the model."""


def check_maxtext(text: str, cfg: ModelConfig) -> None:
    """Raise BadRequest where a number of the text contradicts the model that it is read for."""
    if features(cfg) <= set(MAXTEXT.builds or ()):
        own = maxtext_model.model_flags(cfg)
    else:
        own = {"model_name": named_model(cfg)}
    own = {**snapshot()["models"].get(str(own.get("model_name")), {}), **own}
    _check("maxtext", maxtext_read.given_flags(text).given, own, MAXTEXT_SHAPE, cfg)


def check_megatron(text: str, cfg: ModelConfig) -> None:
    """As `check_maxtext`, of Megatron's arguments."""
    if features(cfg) <= set(MEGATRON.builds or ()):
        own, given = megatron_model.model_arguments(cfg), megatron_read.parsed(text).given
        wide = "--ffn-hidden-size"
        if cfg.has_experts and "--moe-ffn-hidden-size" in given and _all_experts(cfg):
            given = {flag: value for flag, value in given.items() if flag != wide}  # of no layer
        _check("megatron", given, own, MEGATRON_SHAPE, cfg)


def _all_experts(cfg: ModelConfig) -> bool:
    return all(isinstance(group.mlp, Moe) for group in cfg.groups)


def _check(
    target: str,
    given: Mapping[str, str],
    own: Mapping[str, Any],
    shape: Collection[str],
    cfg: ModelConfig,
) -> None:
    """The vocabulary may be padded: it alone may be larger."""
    for flag in shape:
        said, has = _number(given.get(flag)), _number(own.get(flag))
        padded = "vocab" in flag and said is not None and has is not None and said > has
        if said is not None and has is not None and said != has and not padded:
            raise BadRequest(
                f"{target}: {flag} is {given[flag]} in the text, and {has:g} of the model "
                f"'{cfg.name}'; give the --model that the text is for, or correct the flag"
            )


def _number(value: Any) -> float | None:
    """A number that is written, None for any other text and for a switch."""
    try:
        return None if value in (None, "") or isinstance(value, bool) else float(value)
    except (ValueError, TypeError):
        return None


def of_trainer(text: str) -> str | None:
    """The model of the zoo with the Hugging Face id, or the name, of a Trainer's text; one of
    another owner is taken for the same where the last part of the id is. Lacking for one that is
    not known, by its key."""
    given = given_of(text, whole=False)
    name = given.take(*MODEL)
    if name is None:
        return config_of(Flags("megatron", given.shape)) if given.shape else None
    return _of_hub(given.called(next(key for key in MODEL if key in given)), str(name))


def _of_hub(key: str, name: str) -> str:
    """The model of the zoo with the name that stands under a key."""
    found = model_named(name)
    if found is None:
        raise Lacking(
            f"the text's {key} is {shown(name)}, which is not a known model name",
            "give its config.json, or a known model of its shape, with --model",
            Gives.MODEL,
            get_close_matches(name.rpartition("/")[2].lower(), zoo_names(), 1, 0)[0],
        )
    return found


def of_server(target: str, text: str) -> str | None:
    """The model of the zoo that a server's command names: `vllm serve MODEL`, `--model MODEL`,
    `--model-path MODEL`."""
    return model_said(arguments_of(target, text)).get("model")


def model_said(words: Sequence[str]) -> dict[str, str]:
    """The model of the zoo that the words of a server's command name, as a plan's field; nothing
    where they name none."""
    parts = [part for word in words for part in word.split("=", 1)]
    before = ("serve", "--model", "--model-path")
    found = (name for flag, name in pairwise(parts) if flag in before and name[:1] != "-")
    name = next(found, "")
    known = name if name in zoo_names() else of_hub(name)
    return {"model": known} if known else {}


def check_trainer(text: str, cfg: ModelConfig) -> None:
    """As `check_maxtext`, of the model that a Trainer's text names."""
    try:
        name = of_trainer(text)
    except Lacking:
        return  # nothing is known of it that the one given could contradict
    if name is not None and params_total(load_model(name)) != params_total(cfg):
        raise BadRequest(
            f"the model is '{name}' in the text, whose parameters differ from those of "
            f"'{cfg.name}'; give the --model that the text is for"
        )


def of_torchtitan(text: str) -> str | None:
    """The model of TorchTitan's registry that a text names."""
    said = said_model(text)
    for name in zoo_names() if said else ():
        flavor = flavor_of(load_model(name))
        if flavor is not None and (flavor.module, flavor.name) == said:
            return name
    return None


def _alike(
    given: Mapping[str, str], flags: Written, shape: Collection[str], builds: Collection[str]
) -> str | None:
    """The model of the zoo whose flags of shape are those given, with most others in common."""
    best: tuple[int, str] | None = None
    for name in zoo_names():
        cfg = load_model(name)
        if not features(cfg) <= set(builds):
            continue
        own = {flag: written(value) for flag, value in flags(cfg).items()}
        if any(not _same(own.get(flag), given.get(flag)) for flag in shape):
            continue
        common = sum(_same(value, given.get(flag)) for flag, value in own.items())
        if best is None or common > best[0]:
            best = (common, name)
    return best and best[1]


def _same(mine: str | None, given: str | None) -> bool:
    """Whether two flags say the same; a number that is not there is none."""
    if mine is None or given is None:
        return (mine or "0") in _NOTHING and (given or "0") in _NOTHING and mine != ""
    try:
        return float(mine) == float(given)
    except ValueError:
        return mine == given


_NOTHING = ("0", "1", "false")
"""What a flag that is not there stands for."""
