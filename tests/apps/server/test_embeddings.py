"""/v1/embeddings: forms of input and of vectors, counts, refusals; over vectors made by hand."""

import base64
from dataclasses import replace

import httpx
import numpy as np
import openai
import pytest
from tests.apps.server.made import folder_of, nothing_is_held, replica_of

from shardwise.apps.server.run import running
from shardwise.errors import BadRequest


class ByHand:
    """A vector of a prompt's first token, its last and how many there are."""

    def check(self, dimensions):
        if dimensions != 2:
            raise BadRequest(f"dimensions is {dimensions}; these vectors have 2, 3")

    def batches(self, prompts):
        yield from ([i] for i in reversed(range(len(prompts))))

    def vectors(self, prompts, dimensions=None):
        found = [[prompt[0], prompt[-1], len(prompt) + 0.5] for prompt in prompts]
        return np.array(found, np.float32)[:, :dimensions]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    made = replica_of(folder_of(tmp_path_factory.mktemp("checkpoint")))
    with running(replace(made, embedder=lambda _: ByHand())) as (state, found):
        yield found
        nothing_is_held(state)


@pytest.fixture
def client(url):
    with httpx.Client(base_url=url, timeout=30) as made:
        yield made


def ask(client, **body):
    return client.post("/v1/embeddings", json=body)


def test_every_form_of_input_is_taken(client):
    texts = ["the fox", "the lazy dog"]
    tokens = [client.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in texts]
    found = ask(client, input=texts).json()
    assert found == {**ask(client, input=tokens).json(), "id": found["id"]}
    assert [one["index"] for one in found["data"]] == [0, 1]
    vectors = [one["embedding"] for one in found["data"]]
    assert vectors == [[t[0], t[-1], len(t) + 0.5] for t in tokens]
    count = sum(map(len, tokens))
    assert found["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert (found["object"], found["model"]) == ("list", "mock")
    for one in (texts[1], tokens[1]):
        assert ask(client, input=one).json()["data"][0]["embedding"] == vectors[1]
    bare = ask(client, input=texts[0], add_special_tokens=False).json()
    assert bare["usage"]["total_tokens"] == len(tokens[0]) - 1


def test_bytes_are_the_same_numbers(client, url):
    found = ask(client, input=[[5, 6]], encoding_format="base64", dimensions=2).json()
    data = base64.b64decode(found["data"][0]["embedding"])
    assert np.frombuffer(data, "<f4").tolist() == [5, 6]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
        vectors = sdk.embeddings.create(model="mock", input=[[5, 6]]).data  # asks for bytes
        assert vectors[0].embedding == [5, 6, 2.5]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a", "dimensions": 7}, "dimensions"),
        ({"input": [[]]}, "input"),
        ({"input": ""}, "input"),
        ({"input": [[2**20]]}, "input"),
        ({"input": [[5] * 1025]}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({}, "input"),
        ({"input": "a", "model": "other"}, "model"),
    ],
)
def test_what_has_no_vector_is_refused_by_name(client, body, param):
    if body.get("input") == "":
        body["add_special_tokens"] = False
    answer = ask(client, **body)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["param"] == param


def test_a_server_without_a_model_says_so(tmp_path):
    with running(replica_of(folder_of(tmp_path))) as (_, url):
        assert httpx.post(f"{url}/v1/embeddings", json={"input": "a"}).status_code == 501
