#!/usr/bin/env python3
"""Golden outputs of transformers for tiny models: tests/runtime/golden/NAME.json and NAME.npy.

    scripts/make_golden.py [OUT] [NAME ...]

Needs torch and transformers; nothing else of shardwise does. The tiny config of each model is read
from its tests/runtime/golden/NAME.json; for a new one, write that file as {"config": {...}} with
`model_type`, sizes and switches. The checkpoint is written by `save_pretrained`, every tensor
replaced by numbers that follow from its name and shape (`weights.py` beside the goldens), and
loaded back. Stored are the whole config, the logits of a prompt [B, T, V] in float32 and what
greedy decoding appends; never the weights.
"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

GOLDEN = Path(__file__).parents[1] / "tests" / "runtime" / "golden"
PROMPT = 12
NEW = 10


def helper():
    """The module that makes weights from names and shapes; tests use the same."""
    spec = importlib.util.spec_from_file_location("weights", GOLDEN / "weights.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(config: dict, folder: Path):
    """The model with the weights that follow from names, and its checkpoint in `folder`."""
    (folder / "config.json").write_text(json.dumps(config))
    known = transformers.AutoConfig.from_pretrained(folder)
    transformers.AutoModelForCausalLM.from_config(known).save_pretrained(folder)
    made = helper().tensor
    path = folder / "model.safetensors"
    tensors = {k: made(k, v.shape) for k, v in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def run(model, vocabulary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompt [B, T], logits [B, T, V] and greedy tokens [B, NEW]."""
    prompt = np.random.RandomState(7).randint(3, vocabulary, (2, PROMPT))
    tokens = torch.tensor(prompt)
    with torch.no_grad():
        logits = model(tokens).logits
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
        )
    return prompt, logits.float().numpy(), out[:, PROMPT:].numpy()


def main(out: Path, names: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in names or sorted(path.stem for path in GOLDEN.glob("*.json")):
        config = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))["config"]
        with tempfile.TemporaryDirectory() as folder:
            model = build(config, Path(folder))
            prompt, logits, generated = run(model, config["vocab_size"])
            config = json.loads((Path(folder) / "config.json").read_text())
        document = {
            "transformers": transformers.__version__,
            "config": {k: v for k, v in config.items() if k != "transformers_version"},
            "prompt": prompt.tolist(),
            "generated": generated.tolist(),
        }
        (out / f"{name}.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
        np.save(out / f"{name}.npy", logits.astype(np.float32))
        print(name, np.abs(logits).max(), generated[0].tolist(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN, sys.argv[2:])
