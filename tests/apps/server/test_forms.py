"""Answers in a form, asked for by OpenAI's and vLLM's fields."""

import json

import httpx
import openai
import pytest
from pydantic import BaseModel
from tests.apps.server.made import folder_of, nothing_is_held, replica_of

from shardwise.apps.server.run import running


class Weather(BaseModel):
    city: str
    degrees: int


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("checkpoint"))
    with running(replica_of(folder, ends=True)) as found:
        yield found
        nothing_is_held(found[0])


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server[1], timeout=30) as made:
        yield made


BOUNDED = {
    "type": "object",
    "properties": {"sizes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "required": ["sizes"],
    "additionalProperties": False,
}


def chat(client, **fields):
    messages = [{"role": "user", "content": "the fox"}]
    return client.post("/v1/chat/completions", json={"messages": messages, **fields})


def test_a_schema_by_openais_names(client):
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": BOUNDED, "strict": True}}
    choice = chat(client, response_format=form, max_tokens=200).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert json.loads(choice["message"]["content"]).keys() == {"sizes"}


def test_the_sdks_own_classes_are_parsed(server):
    with openai.OpenAI(base_url=f"{server[1]}/v1", api_key="none", max_retries=0) as sdk:
        asked = [{"role": "user", "content": "how warm?"}]
        with pytest.raises(openai.LengthFinishReasonError):  # "city" has no bound, the mock no end
            sdk.chat.completions.parse(
                model="mock", messages=asked, response_format=Weather, max_tokens=40
            )


@pytest.mark.parametrize(
    ("form", "right"),
    [
        ({"regex": "(red|green) [0-9]{2}"}, lambda t: t[-3] == " " and t[-2:].isdigit()),
        ({"choice": ["left", "right"]}, lambda t: t in ("left", "right")),
        ({"json": BOUNDED}, lambda t: "sizes" in json.loads(t)),
    ],
)
def test_forms_by_vllms_names_for_completions_and_streams(client, form, right):
    body = {"prompt": "the", "max_tokens": 200, "structured_outputs": form, "n": 2}
    for choice in client.post("/v1/completions", json=body).json()["choices"]:
        assert right(choice["text"])
    with client.stream("POST", "/v1/completions", json={**body, "n": 1, "stream": True}) as lines:
        parts = [json.loads(x[6:]) for x in lines.iter_lines() if x.startswith("data: {")]
    assert right("".join(p["choices"][0]["text"] for p in parts if p["choices"]))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "s", "schema": {"type": "nonsense"}},
                }
            },
            "response_format",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
    ],
)
def test_a_bad_form_is_a_400_that_names_the_field(client, fields, param):
    answer = chat(client, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
