"""What pages go on from that lies elsewhere: a tiny model of another page, folders of the clone."""

import json
from pathlib import Path
from pydoc_data.topics import topics

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
}


def of_the_clone(folder: str) -> None:
    """A folder of the repository, seen from here."""
    Path(folder).symlink_to(Path(__file__).parents[2] / folder)


def tiny_model(folder: str) -> None:
    """A folder with the config.json of "Train a small model"."""
    Path(folder).mkdir()
    (Path(folder) / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")


def tiny_checkpoint(folder: str) -> None:
    """What that page trains, but with random weights: config, weights and tokenizer."""
    import jax
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from shardwise.models import load_model
    from shardwise.runtime import initialise, save

    tiny_model(folder)
    cfg = load_model(folder)
    save(folder, initialise(cfg, jax.random.key(0)), cfg)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=["</s>"],
        show_progress=False,
        initial_alphabet=alphabet,
    )
    tokenizer.train_from_iterator(topics.values(), trainer)
    tokenizer.save(f"{folder}/tokenizer.json")
