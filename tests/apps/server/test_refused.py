"""What the API refuses, and how it fails: by the name of a field, with a status and an error."""

import time

import httpx
import openai
import pytest
from tests.apps.server.made import (
    CHAT,
    PROMPT,
    folder_of,
    nothing_is_held,
    replica_of,
)

from shardwise.apps.server.run import running
from shardwise.apps.server.state import ServerLimits


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("completions", {}, "prompt", "required"),
        ("completions", {"prompt": []}, "prompt", "at least 1"),
        ("completions", {"prompt": [[]]}, "prompt", "at least 1"),
        ("completions", {"prompt": [1, "a"]}, "prompt", "must be a whole number"),
        ("completions", {"prompt": [303]}, "prompt", "token 303, which is not below 303"),
        ("completions", {"prompt": [-1]}, "prompt", "at least 0"),
        (
            "completions",
            {"prompt": [1] * 1024},
            "prompt",
            "1,024 tokens, and the model takes 1,024",
        ),
        ("completions", {**PROMPT, "max_tokens": "9"}, "max_tokens", "a whole number; it is '9'"),
        ("completions", {**PROMPT, "max_tokens": 0}, "max_tokens", "without echo"),
        ("completions", {**PROMPT, "max_tokens": 1023}, "max_tokens", "ask for at most 1,022"),
        ("completions", {**PROMPT, "n": 0}, "n", "at least 1"),
        ("completions", {**PROMPT, "n": True}, "n", "a whole number"),
        ("completions", {**PROMPT, "suffix": "x"}, "suffix", "does not support it"),
        ("completions", {**PROMPT, "best_of": 2}, "best_of", "must be 1"),
        ("completions", {**PROMPT, "temprature": 1}, "temprature", "mean 'temperature'?"),
        ("completions", {**PROMPT, "n": 0, "zzz": 1}, "n", "at least 1"),
        (
            "completions",
            {**PROMPT, **{f"z{i}": 1 for i in range(65)}},
            "z0",
            "no field of this name; leave it out",
        ),
        ("completions", {**PROMPT, "stop_token_ids": [999]}, "stop_token_ids", "not below 303"),
        ("completions", {**PROMPT, "guided_json": {}}, "guided_json", "as response_format"),
        ("completions", {**PROMPT, "max_new_tokens": 1}, "max_new_tokens", "'max_tokens'?"),
        (
            "completions",
            {**PROMPT, "stream_options": {"includ_usage": True}},
            "stream_options",
            "includ_usage: this server has no field of this name; did you mean 'incl",
        ),
        ("completions", {"prompt": [[5, -1]]}, "prompt", "prompt[0][1]: it must be at least 0"),
        ("completions", {**PROMPT, "top_p": 7}, "top_p", "at most 1; it is 7"),
        (
            "completions",
            {**PROMPT, "logit_bias": {"3": 200}},
            "logit_bias",
            "at most 100; it is 200",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
            "messages[0].content[0].type: this server reads text alone; it is 'image_url'",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "contents": "a"}]},
            "messages",
            "messages[0].contents: this server has no field of this name; did you mean 'content'?",
        ),
        ("completions", {**PROMPT, "temperature": -1}, "temperature", "at least 0"),
        ("completions", {**PROMPT, "top_p": 0}, "top_p", "above 0"),
        ("completions", {**PROMPT, "logprobs": 21}, "logprobs", "at most 20"),
        ("completions", {**PROMPT, "logit_bias": {"a": 1}}, "logit_bias", "text of the form"),
        ("completions", {**PROMPT, "logit_bias": {"999": 1}}, "logit_bias", "not below 303"),
        ("completions", {**PROMPT, "stop": ""}, "stop", "at least 1 character"),
        ("completions", {**PROMPT, "min_tokens": 17}, "min_tokens", "over max_tokens of 16"),
        ("completions", {**PROMPT, "stream_options": {}}, "stream_options", "needs stream: true"),
        ("completions", {**PROMPT, "model": "gpt-5"}, "model", "there is no model 'gpt-5'"),
        ("chat/completions", {}, "messages", "required"),
        ("chat/completions", {"messages": []}, "messages", "at least 1"),
        ("chat/completions", {"messages": [{"role": "king"}]}, "messages", "'system'"),
        ("chat/completions", {**CHAT, "top_logprobs": 2}, "top_logprobs", "needs logprobs: true"),
        (
            "chat/completions",
            {**CHAT, "tool_choice": "required"},
            "tool_choice",
            "give them as tools",
        ),
        (
            "chat/completions",
            {**CHAT, "max_tokens": 1, "max_completion_tokens": 1},
            "max_tokens",
            "which replaces it",
        ),
        ("chat/completions", {**CHAT, "max_tokens": 1024}, "max_tokens", "ask for at most"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "a" * 2000}]},
            "messages",
            "shorten",
        ),
        (
            "chat/completions",
            {**CHAT, "chat_template_kwargs": {"tools": 1}},
            "chat_template_kwargs",
            "is a field of the request",
        ),
    ],
)
def test_a_bad_request_is_refused_by_the_name_of_its_field(client, path, body, param, said):
    answer = client.post(f"/v1/{path}", json=body)
    error = answer.json()["error"]
    assert answer.status_code == (404 if param == "model" else 400)
    assert (error["param"], error["type"]) == (
        param,
        "not_found_error" if param == "model" else "invalid_request_error",
    )
    assert said in error["message"]
    assert error["message"].startswith((param[:100], "there is no model"))
    assert len(error["message"]) < 400


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"prompt": "a', "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"prompt": "\\ud800"}', "application/json", 400),
        (b'{"prompt": NaN}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"prompt": "a", "temperature": 1e999}', "application/json", 400),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "application/json", 400),
        (b'{"prompt": "a"}', "text/plain", 415),
        (b'{"prompt": "' + b"a" * 9 * 2**20 + b'"}', "application/json", 413),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_body_that_is_none_is_refused(client, body, kind, status):
    answer = client.post("/v1/completions", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_other_paths_and_methods(client):
    assert client.get("/v1/completions").status_code == 405
    assert client.get("/v1/edits").json()["error"]["type"] == "not_found_error"
    assert client.get("/debug/trace", params={"steps": "x"}).json()["error"]["param"] == "steps"
    assert client.get("/v1/models/other").status_code == 404


def test_the_sdk_knows_the_errors(sdk):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        sdk.completions.create(model="mock", prompt="a", temperature=-3)
    with pytest.raises(openai.NotFoundError, match="there is no model 'x'"):
        sdk.chat.completions.create(model="x", messages=CHAT["messages"])


def test_tools_that_a_template_does_not_write_are_refused(tmp_path):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    replica = replica_of(folder_of(tmp_path, chat_template=template))
    tools = [{"type": "function", "function": {"name": "look"}}]
    with running(replica) as (_, url):
        answer = httpx.post(f"{url}/v1/chat/completions", json={**CHAT, "tools": tools})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
        assert "leave them out" in answer.json()["error"]["message"]
        asked = {**CHAT, "tools": tools, "tool_choice": "none", "max_tokens": 1}
        assert httpx.post(f"{url}/v1/chat/completions", json=asked).status_code == 200


def test_a_key_is_asked_for_where_there_is_one(tmp_path):
    replica = replica_of(folder_of(tmp_path))
    with running(replica, api_keys=("s3cret", "other")) as (_, url):
        with pytest.raises(openai.AuthenticationError, match="Bearer KEY"):
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
        assert openai.OpenAI(base_url=f"{url}/v1", api_key="other").models.list().data
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/debug/state").status_code == 401


def test_a_full_queue_and_a_late_answer_are_told(tmp_path):
    replica = replica_of(folder_of(tmp_path), wait=lambda _: time.sleep(0.01))
    limits = ServerLimits(queue=2, seconds=0.3, upload=0.2)
    with running(replica, limits) as (state, url), httpx.Client(base_url=url, timeout=30) as client:
        body = {"prompt": "a", "max_tokens": 900}
        with client.stream("POST", "/v1/completions", json={**body, "n": 2, "stream": True}) as one:
            refused = client.post("/v1/completions", json=body)
            text = one.read().decode()
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert '"type":"server_error"' in text
        assert text.endswith("data: [DONE]\n\n")
        late = client.post("/v1/completions", json=body)
        assert late.status_code == 504
        assert "took over 0.3 s" in late.json()["error"]["message"]
        many = client.post("/v1/completions", json={**body, "n": 3})
        assert (many.status_code, many.json()["error"]["param"]) == (400, "n")
        slow = client.post(
            "/v1/completions",
            content=(time.sleep(0.15) or b'{"pro' for _ in range(4)),
            headers={"Content-Type": "application/json"},
        )
        assert slow.status_code == 408
        time.sleep(0.2)
        nothing_is_held(state)


def test_an_engine_that_fails_says_so_to_everyone(tmp_path):
    def wait(batch):
        if len(batch.generations) and int(batch.cached_D[0]) > 20:
            raise RuntimeError("out of memory")

    replica = replica_of(folder_of(tmp_path), wait=wait)
    with running(replica) as (_, url), httpx.Client(base_url=url, timeout=30) as client:
        failed = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 50})
        assert failed.status_code == 500
        assert "the engine has failed: out of memory" in failed.json()["error"]["message"]
        after = client.post("/v1/completions", json={"prompt": "a"})
        assert after.status_code == 503
        assert client.get("/health").status_code == 503
