"""A checkpoint whose weights are no numbers: its text was served as if it were one's."""

import json
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from shardwise.apps.server.run import running
from shardwise.commands.run.serving import ServeModelRequest, open_replica

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from llama_folder import write_llama


@pytest.fixture(scope="module", params=["nan", pytest.param("inf", marks=pytest.mark.slow)])
def url(request, tmp_path_factory):
    folder = write_llama(tmp_path_factory.mktemp("damaged") / "llama", "least")
    path = folder / "model.safetensors"
    weights = load_file(path)
    damaged = weights["model.norm.weight"]
    damaged[3] = np.nan if request.param == "nan" else np.inf
    save_file(weights, path, metadata={"format": "pt"})
    replica = open_replica(ServeModelRequest(path=str(folder), seq=64), lambda _: None)
    assert replica is not None
    with running(replica) as (_, found):
        yield found


SLOW = [{"temperature": 0}, {"logprobs": 2, "echo": True}, {"structured_outputs": {"regex": "a+"}}]


@pytest.mark.parametrize(
    "fields", [{}, *(pytest.param(fields, marks=pytest.mark.slow) for fields in SLOW)]
)
def test_logits_that_are_no_numbers_are_no_answer(url, fields):
    body = {"prompt": "the fox", "max_tokens": 4, **fields}
    for stream in (False, True):
        answer = httpx.post(f"{url}/v1/completions", json={**body, "stream": stream}, timeout=120)
        assert answer.status_code == 500
        said = json.loads(answer.text)["error"]
        assert "logits are NaN or infinite" in said["message"]
        assert "check the checkpoint" in said["message"]
    assert httpx.get(f"{url}/health", timeout=30).status_code == 200
