"""Vectors of prompts are those of `transformers`, whatever they are computed with."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from llama_folder import write_llama

from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.runtime.checkpoint import load
from shardwise.runtime.engine.embedding import Embedder, vectors_of

PROMPTS = [[5, 6, 7, 8, 9], list(range(10, 190, 10))]
LAST = [[-0.247118, -0.186143, -0.029741, 0.158107], [0.158333, -0.068633, 0.113158, -0.092059]]
MEAN = [[-1.052653, -0.586203, -0.107584, 1.659167], [0.170047, 0.20496, -0.451323, 0.396394]]
"""The first dims of `last_hidden_state` by transformers 5 (AutoModel, float32): of the last token
made a vector of length 1, and the mean."""


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    folder = write_llama(tmp_path_factory.mktemp("llama") / "llama", "least")
    cfg = load_model(folder)
    return Embedder(params=load(folder, cfg, "float32"), cfg=cfg, compute="f32", budget=64)


def test_vectors_are_those_of_transformers(embedder):
    found = embedder.vectors(PROMPTS)
    assert np.allclose(found[:, :4], LAST, atol=2e-5)
    assert np.allclose(np.linalg.norm(found, axis=1), 1)
    mean = replace(embedder, pooling="mean", normalized=False).vectors(PROMPTS)
    assert np.allclose(mean[:, :4], MEAN, atol=2e-5)
    cut = embedder.vectors(PROMPTS, 4)
    assert np.allclose(cut, found[:, :4] / np.linalg.norm(found[:, :4], axis=1, keepdims=True))


def test_prompts_of_like_lengths_are_computed_together(embedder):
    lengths = [60, 3, 16, 200, 17, 5]
    batches = list(embedder.batches([[7] * length for length in lengths]))
    assert sorted(i for batch in batches for i in batch) == list(range(6))
    assert batches == [[1, 5, 2], [4], [0], [3]]


def test_a_folder_says_how_vectors_are_made(tmp_path):
    assert vectors_of(tmp_path, 64) == {"sizes": None}
    kinds = ["sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"]
    (tmp_path / "modules.json").write_text(json.dumps([{"type": kind} for kind in kinds]))
    (tmp_path / "1_Pooling").mkdir()
    path = tmp_path / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}))
    (tmp_path / "config.json").write_text(json.dumps({"matryoshka_dimensions": [16, 32]}))
    found = vectors_of(tmp_path, 64)
    assert found == {"pooling": "mean", "normalized": False, "sizes": {16, 32, 64}}
    path.write_text(json.dumps({"pooling_mode_cls_token": True}))
    with pytest.raises(BadRequest, match="asks for pooling_mode_cls_token"):
        vectors_of(tmp_path, 64)
