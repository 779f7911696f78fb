#!/usr/bin/env python3
"""Which text models of transformers are read: docs/models.md.

    scripts/known_models.py > docs/models.md

Needs torch and transformers. Every decoder-only text class of 2023 or later is built from its
default config on torch's meta device, which allocates nothing, and its parameters are compared with
our count. A class is a text decoder where transformers maps it for causal language modelling, and
it is no encoder (mapped for masked language modelling), no half of an encoder-decoder and no model
of several modalities (a config with other configs inside).
"""

import importlib
import inspect
import json
import re
from dataclasses import dataclass

import torch
import transformers
from count_class import total
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from shardwise.errors import BadRequest
from shardwise.models import from_hf, params_total

FIRST_YEAR = 2023
YEARS = {"llama": 2023, "mistral": 2023, "phi": 2023, "qwen2": 2024, "olmoe": 2024}
YEARS |= {"deepseek_v3": 2024, "ministral3": 2025}
"""Where the class's file has no copyright line of its own year: that of the model's paper."""

LACKING = {
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
    },
    "dbrx": {},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "qwen4_exp_text": {
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 16,
    },
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"]},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
}
"""Keys without which the class itself cannot be built, or cannot route, from its defaults."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """One class: its own count, and ours or why there is none."""

    model_type: str
    architecture: str
    year: int
    params: int | None
    read: int | None
    why: str

    @property
    def exact(self):
        return self.params is not None and self.params == self.read


def text_classes():
    """(model type, class) of every text decoder of FIRST_YEAR or later."""
    masked = set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    for kind, named in sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()):
        architecture = named if isinstance(named, str) else named[0]
        config = CONFIG_MAPPING[kind]
        several = bool(getattr(config, "sub_configs", None))
        halved = getattr(config, "is_encoder_decoder", False) or not re.search(
            "CausalLM|LMHead", architecture
        )
        if kind not in masked and not several and not halved and year(config) >= FIRST_YEAR:
            yield kind, architecture


def year(config):
    """The year of the copyright line of the class's file, or of its paper."""
    if config.model_type in YEARS:
        return YEARS[config.model_type]
    module = importlib.import_module(config.__module__)
    head = inspect.getsource(module)[:800]
    years = re.findall(r"\b20[12]\d\b", head)
    return int(years[0]) if years else 0


def known(kind, architecture):
    """Both counts of one class."""
    when = year(CONFIG_MAPPING[kind])
    try:
        config = CONFIG_MAPPING[kind](**LACKING.get(kind, {}))
        with torch.device("meta"):
            built = getattr(transformers, architecture)(config)
    except Exception as problem:  # whatever a class of transformers raises
        return Known(
            model_type=kind,
            architecture=architecture,
            year=when,
            params=None,
            read=None,
            why=f"its defaults do not build it: {type(problem).__name__}",
        )
    params = total(built)
    raw = {**json.loads(config.to_json_string(use_diff=False)), "architectures": [architecture]}
    try:
        read, why = params_total(from_hf(raw, name=kind)), ""
    except BadRequest as problem:
        read, why = None, str(problem).removeprefix("config.json: ").partition("; ")[0]
    return Known(
        model_type=kind, architecture=architecture, year=when, params=params, read=read, why=why
    )


def all_known():
    """Every class, counted both ways."""
    transformers.logging.set_verbosity_error()
    return [known(*pair) for pair in text_classes()]


def page(rows):
    """docs/models.md."""
    exact = [r for r in rows if r.exact]
    yield "# Text models of transformers that shardwise reads\n"
    yield (
        f"Made by `scripts/known_models.py` with transformers {transformers.__version__}. The "
        f"table lists every decoder-only text class of {FIRST_YEAR} or later, built from its "
        "default config on torch's meta device. "
        f"shardwise reads {len(exact)} of {len(rows)} ({len(exact) / len(rows):.0%}), each with "
        "exactly the parameters that the class uses. The year comes from the copyright line of the "
        "class's file, or else from the model's paper.\n"
    )
    yield (
        "shardwise also reads a config of another class if its text model is in the table "
        "(`text_config`, `language_config`, `llm_config`). With `--as CLASS` it reads any config "
        "that has the shape of a class in the table. Classes of remote code (ChatGLM, Kimi and "
        "others) are in `src/shardwise/models/data/architectures.toml`. FLOPs leave out two parts "
        "(`tests/models/test_class_forward.py`): the sum over an indexer's heads and the mixing of "
        "residual streams.\n"
    )
    yield "| model type | class | year | parameters | read |\n|---|---|---|---|---|"
    for r in rows:
        params = "-" if r.params is None else f"{r.params:,}"
        said = "exact" if r.exact else r.why or f"counts {r.read:,}"
        yield f"| {r.model_type} | {r.architecture} | {r.year} | {params} | {said} |"


if __name__ == "__main__":
    print("\n".join(page(all_known())))
