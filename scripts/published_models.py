#!/usr/bin/env python3
"""Models of 2025-26 from their published configs, counted and compared: docs/published_models.md.

    scripts/published_models.py > docs/published_models.md

Needs torch and transformers. Each config of the zoo is given to the class of transformers that it
names, which is built on torch's meta device, and the parameters are compared.
"""

import torch
import transformers
from count_class import total

from shardwise.models import load_model, params_active, params_total
from shardwise.models.zoo import hf_config

NAMES = (
    "ax-k1 deepseek-v3.1 deepseek-v3.2 deepseek-v4-flash deepseek-v4-pro ernie-4.5-0.3b "
    "ernie-4.5-21b-a3b gemma-4-26b-a4b gemma-4-31b glm-4.6 glm-5.1 glm-5.2 glm-5.3 "
    "glm-5.3-flash gpt-oss-120b granite-4.0-h-1b granite-4.0-h-small granite-4.0-h-tiny "
    "hunyuan-4b hunyuan-7b hy3-preview kimi-k2.6 kimi-k2.7-code kimi-linear-48b-a3b laguna-xs.2 "
    "lfm2-2.6b lfm3-1.7b ling-3.0-flash longcat-flash mellum2-12b-a2.5b mimo-v2-flash "
    "minimax-m2.7 minimax-m3 ministral-3-8b mistral-large-3 mistral-large-4 mistral-medium-3.5 "
    "muse-glimmer-30b muse-spark-816b-a42b nemotron-3-nano-30b-a3b nemotron-3-super-120b-a12b "
    "nemotron-3-ultra-550b-a55b nemotron-3.5-lightning-30b-a3b nemotron-nano-12b-v2 "
    "nemotron-nano-9b-v2 olmo-hybrid-7b qwen3-1.7b qwen3-vl-235b-a22b qwen3-vl-32b qwen3-vl-4b "
    "qwen3.5-397b-a17b qwen3.5-4b qwen3.6-27b qwen3.6-35b-a3b qwen3.8-2.4t-a95b qwen3.8-27b "
    "solar-open-100b"
)
MODELS = NAMES.split()

RENAMED = {
    "KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration",
    "MiniMaxM3ForCausalLM": "MiniMaxM3VLForCausalLM",
}
"""Classes of a model's own code, and what transformers calls them."""


def built(name):
    """Parameters of the class of transformers: all, and those of its towers."""
    named = load_model(name).architecture
    cls = getattr(transformers, RENAMED.get(named, named))
    raw = dict(hf_config(name))
    raw.pop("architectures")
    for section in (raw, raw.get("text_config", {})):
        section.pop("quantization_config", None)
    remote = raw.pop("linear_attn_config", None)
    if remote:  # a key of Moonshot's own code; the class spells the same layers as a list
        linear = {layer - 1 for layer in remote["kda_layers"]}
        kinds = ("full_attention", "linear_attention")
        raw["layer_types"] = [kinds[n in linear] for n in range(raw["num_hidden_layers"])]
    with torch.device("meta"):
        model = cls(cls.config_class(**raw))
    towers = ("vision", "visual", "audio", "projector")
    sizes = {key: tensor.numel() for key, tensor in model.named_parameters()}
    tower = [size for key, size in sizes.items() if any(word in key for word in towers)]
    return total(model), sum(tower)


def row(name):
    """One line of the table."""
    cfg, (count, tower) = load_model(name), built(name)
    said = cfg.provenance
    source = f"{said['repository']} {said['path']}"
    if "commit" in said:
        source = source.replace(" ", f"@{said['commit'][:7]} ", 1)
    ours, active = params_total(cfg), params_active(cfg)
    whole, text = "exact", "exact but for its towers, which are not counted"
    how = {count - tower: text, count: whole}.get(ours, f"NOT its {count:,}")
    hub = said["hf_id"]
    return f"| {name} | {hub} | {cfg.architecture} | {ours:,} | {active:,} | {how} | {source} |"


def page():
    """docs/published_models.md."""
    rows = [row(name) for name in MODELS]
    exact = sum("| exact |" in one for one in rows)
    text = sum("| exact but" in one for one in rows)
    yield "# Published configs of 2025-26\n"
    yield (
        f"Made by `scripts/published_models.py` with transformers {transformers.__version__}: "
        f"{len(rows)} models of the zoo, each from the config that its source has. The parameters "
        f"of {exact} are exactly those of the class of transformers that the config names, built "
        f"on torch's meta device, those of {text} but for towers of other inputs. Layers for "
        "multi-token prediction are in neither count, and model cards that count them say more "
        "(GLM-4.6: 355B). A source that is a class of transformers is its defaults, whose "
        "docstring names the model.\n"
    )
    yield "| model | Hugging Face id | class | parameters | active | against the class | source |"
    yield "|---|---|---|---|---|---|---|"
    yield from rows


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    print("\n".join(page()))
