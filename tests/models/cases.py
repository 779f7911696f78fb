"""Expected figures of the zoo, and small configs to bend. The package never reads them."""

import csv
from pathlib import Path

DATA = Path(__file__).parent / "data"


def expected() -> list[dict[str, str]]:
    """Rows of expected_counts.csv: figures with the method and origin they were counted by."""
    with (DATA / "expected_counts.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def llama(**changes) -> dict:
    """A small Llama config; a value of ... drops the key."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    } | changes
    return {key: value for key, value in config.items() if value is not ...}
