"""Logits and greedy tokens equal transformers' on tiny models of every family.

The goldens came from `scripts/make_golden.py`; the tests marked `torch` make them again and load
our checkpoints in transformers wherever torch is installed.
"""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime import goldens
from tests.tiers import spread

from shardwise.models import params_text
from shardwise.runtime import Options, forward, generate, load, save

ROOT = Path(__file__).parents[2]
LIMIT = 1e-4
REFERENCE = 5e-5
"""How far the reference may be from itself: in float32, with the instructions of another CPU
(AVX-512, AVX2, none), it moves by 2.6e-5 at most (qwen3-next), by 2.2e-5 in gemma3, by less than
1.6e-5 in others."""


def loaded(name, folder):
    cfg = goldens.config(name)
    goldens.write_checkpoint(cfg, folder)
    return cfg, load(folder, cfg)


def prompt(name):
    return jnp.asarray(goldens.document(name)["prompt"], jnp.int32)


def test_at_least_ten_families():
    assert len({goldens.config(name).model_type for name in goldens.NAMES}) >= 20


RELATIVES = {
    *(
        "cohere",
        "deepseek-v2",
        "deepseek-v2-lite",
        "gemma",
        "gemma3",
        "glm4-moe",
        "gptj",
        "granite",
    ),
    *("llama-3.1", "llama-linear", "llama-yarn", "mistral", "mixtral", "olmo2", "phi", "phi3"),
    *("qwen2", "qwen2-moe", "qwen3-moe", "smollm3", "stablelm", "starcoder2"),
}
"""Models whose parts another one has too, but for a number or two."""
APART = ("cohere2", "deepseek-v3", "ernie4_5", "gemma2", "lfm2", "qwen3", "qwen3-next")
"""Models of parts that are their own, and others' as well."""


def _marks(name):
    if name in RELATIVES:
        return pytest.mark.long
    return pytest.mark.slow if name in APART else ()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=_marks(name)) for name in goldens.NAMES],
)
def test_logits_and_greedy_tokens(name, tmp_path):
    cfg, params = loaded(name, tmp_path)
    assert goldens.parameter_count(params) == params_text(cfg)
    logits = jax.jit(partial(forward, cfg=cfg))(params, prompt(name))
    np.testing.assert_allclose(np.asarray(logits), goldens.logits(name), rtol=0, atol=LIMIT)
    wanted = goldens.document(name)["generated"]
    got = generate(params, prompt(name), cfg, len(wanted[0]))
    assert np.asarray(got).tolist() == wanted


@pytest.mark.parametrize("name", spread(["mixtral", "gpt-oss", "qwen2-moe", "deepseek-v3"], slow=1))
def test_ragged_dispatch_has_the_same_logits(name, tmp_path):
    cfg, params = loaded(name, tmp_path)
    run = jax.jit(partial(forward, cfg=cfg, options=Options(experts="ragged")))
    np.testing.assert_allclose(
        np.asarray(run(params, prompt(name))), goldens.logits(name), rtol=0, atol=LIMIT
    )


def python(arguments):
    """Python with torch on one thread: matmuls this small are slower on several."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=alone)


@pytest.mark.slow
@pytest.mark.torch
def test_goldens_are_what_transformers_gives(tmp_path):
    script = str(ROOT / "scripts" / "make_golden.py")
    python([script, tmp_path])
    for name in goldens.NAMES:
        again = np.load(tmp_path / f"{name}.npy")
        np.testing.assert_allclose(
            again, goldens.logits(name), rtol=0, atol=REFERENCE, err_msg=name
        )
        made = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        assert made["generated"] == goldens.document(name)["generated"]


IN_TRANSFORMERS = """
import json, sys, numpy as np, torch, transformers
from pathlib import Path
for folder in sys.argv[1:]:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"], (folder, report)
    tokens = torch.tensor(json.loads((Path(folder) / "prompt.json").read_text()))
    with torch.no_grad():
        logits = model.eval()(tokens).logits.float()
    np.save(Path(folder) / "logits.npy", logits.numpy())
"""


@pytest.mark.slow
@pytest.mark.torch
def test_saved_checkpoints_load_in_transformers(tmp_path):
    folders = []
    for name in goldens.NAMES:
        cfg, params = loaded(name, tmp_path / "made")
        folder = tmp_path / name
        save(folder, params, cfg, max_file_bytes=60_000)
        (folder / "config.json").write_text(json.dumps(goldens.document(name)["config"]))
        (folder / "prompt.json").write_text(json.dumps(goldens.document(name)["prompt"]))
        folders.append(str(folder))
    python(["-c", IN_TRANSFORMERS, *folders])
    for name in goldens.NAMES:
        logits = np.load(tmp_path / name / "logits.npy")
        np.testing.assert_allclose(
            logits, goldens.logits(name), rtol=0, atol=REFERENCE, err_msg=name
        )
