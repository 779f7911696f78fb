"""A Llama of any size with random weights and a tokenizer of its own, as a Hugging Face folder.

    python scripts/llama_folder.py FOLDER [--shape tiny|small|0.3b]

What servers are compared and clients are tried on, where no hub can be reached.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SHAPES = {  # hidden, feed-forward, layers, heads, KV heads, vocabulary: parameters
    "least": (64, 160, 2, 4, 2, 512),  # 0.16 M
    "tiny": (256, 688, 4, 8, 4, 4096),  # 5 M
    "0.3b": (1024, 2816, 20, 16, 8, 32768),  # 0.3 B
}
TEMPLATE = (
    "{% if tools %}<s>tools, for <tool_call>: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
DOCS = Path(__file__).parents[1] / "docs"


def write_llama(folder: Path, shape: str = "tiny", *, seed: int = 0) -> Path:
    """The folder, made unless it is there."""
    if (folder / "model.safetensors").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(*SHAPES[shape])
    rng = np.random.default_rng(seed)
    weights = {name: _drawn(rng, name, sizes) for name, sizes in _tensors(config)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    words = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
    }
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    for name, document in (
        ("config.json", config),
        ("tokenizer_config.json", words),
        ("generation_config.json", ends),
    ):
        (folder / name).write_text(json.dumps(document, indent=1), encoding="utf-8")
    return folder


def _config(
    width: int, hidden: int, layers: int, heads: int, kv_heads: int, vocabulary: int
) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width // heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def _tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, hidden = config["hidden_size"], config["intermediate_size"]
    own = config["head_dim"] * config["num_attention_heads"]
    shared = config["head_dim"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (config["vocab_size"], width)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (width,)
        yield layer + "post_attention_layernorm.weight", (width,)
        for name, rows in (("q", own), ("k", shared), ("v", shared)):
            yield layer + f"self_attn.{name}_proj.weight", (rows, width)
        yield layer + "self_attn.o_proj.weight", (width, own)
        yield layer + "mlp.gate_proj.weight", (hidden, width)
        yield layer + "mlp.up_proj.weight", (hidden, width)
        yield layer + "mlp.down_proj.weight", (width, hidden)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (config["vocab_size"], width)


def _drawn(rng: np.random.Generator, name: str, sizes: tuple[int, ...]) -> np.ndarray:
    """Norms of one, matrices that keep the size of what they multiply; the head's logits are
    three times as far apart, so that few are near ties."""
    if len(sizes) == 1:
        return np.ones(sizes, np.float32)
    spread = (3 if name == "lm_head.weight" else 1) / sizes[1] ** 0.5
    return rng.standard_normal(sizes, np.float32) * np.float32(spread)


def _tokenizer(vocabulary: int) -> Tokenizer:
    """Byte pairs of this project's pages; ids above those it has are the model's alone."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocabulary, 8192),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    made.train([str(path) for path in sorted(DOCS.rglob("*.md"))], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a Llama with random weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    given = parser.parse_args()
    print(write_llama(given.folder, given.shape))
