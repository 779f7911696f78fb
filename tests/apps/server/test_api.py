"""The API, asked as its clients ask it: the openai package and plain HTTP."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event

import httpx
import openai
import pytest
from tests.apps.server.made import SPECIAL, folder_of, nothing_is_held, replica_of

from shardwise.apps.server import gate
from shardwise.apps.server.run import running
from shardwise.apps.server.state import ServerLimits
from shardwise.runtime.engine import mock_token


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("checkpoint"))
    replica = replica_of(folder, wait=lambda _: time.sleep(0.0005))
    with running(replica) as found:
        yield found
        time.sleep(0.1)
        nothing_is_held(found[0])


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server[1], timeout=30) as made:
        yield made


@pytest.fixture
def sdk(server):
    with openai.OpenAI(base_url=f"{server[1]}/v1", api_key="none", max_retries=0) as made:
        yield made


def text_after(state, prompt, count):
    """What the mock engine says after a prompt."""
    text = state.replica.text
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(mock_token(tokens, text.vocabulary))
    return tokens[len(prompt) :], text.decode(tokens[len(prompt) :])


def test_a_completion_is_the_engines(server, sdk):
    state, _ = server
    prompt = state.replica.text.encode("the quick")
    found = sdk.completions.create(model="mock", prompt="the quick", max_tokens=20, temperature=0)
    assert found.choices[0].text == text_after(state, prompt, 20)[1]
    assert found.choices[0].finish_reason == "length"
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), 20)
    assert usage.total_tokens == len(prompt) + 20
    by_tokens = sdk.completions.create(model="mock", prompt=prompt, max_tokens=20)
    assert by_tokens.choices[0].text == found.choices[0].text


def test_a_stream_says_the_same_piece_by_piece(sdk):
    asked = {"model": "mock", "prompt": "the dog", "max_tokens": 40}
    whole = sdk.completions.create(**asked)
    events = list(
        sdk.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    parts = [event for event in events if event.choices]
    assert "".join(e.choices[0].text for e in parts) == whole.choices[0].text
    assert [e.choices[0].finish_reason for e in parts][-1] == "length"
    assert len(parts) > 2
    assert all(e.usage is None for e in parts)
    assert events[-1].usage.completion_tokens == 40


def test_prompts_and_answers_have_their_own_choices(server, sdk):
    state, _ = server
    found = sdk.completions.create(model="mock", prompt=["the cat", "sat"], n=3, max_tokens=5)
    assert [choice.index for choice in found.choices] == list(range(6))
    for i, choice in enumerate(found.choices):
        prompt = state.replica.text.encode(["the cat", "sat"][i // 3])
        assert choice.text == text_after(state, prompt, 5)[1]
    assert found.usage.completion_tokens == 30
    streamed = sdk.completions.create(
        model="mock", prompt=["the cat", "sat"], n=3, max_tokens=5, stream=True
    )
    texts = dict.fromkeys(range(6), "")
    for event in streamed:
        texts[event.choices[0].index] += event.choices[0].text
    assert list(texts.values()) == [choice.text for choice in found.choices]


def test_a_second_turn_is_cached(sdk):
    asked = {"model": "mock", "prompt": list(range(10, 80)), "max_tokens": 2}
    first, second = (sdk.completions.create(**asked).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.cached_tokens == 64


def test_echo_and_logprobs_stand_token_by_token(server, sdk):
    """As lm-eval reads them: the prompt's first token has none."""
    prompt = server[0].replica.text.encode("the fox")
    found = sdk.completions.create(
        model="mock", prompt="the fox", max_tokens=1, echo=True, logprobs=2
    ).choices[0]
    logprobs = found.logprobs
    assert found.text.startswith("the fox")
    assert len(logprobs.tokens) == len(prompt) + 1
    assert logprobs.token_logprobs == [None] + [0.0] * len(prompt)
    assert logprobs.top_logprobs[0] is None
    assert all(len(top) == 2 for top in logprobs.top_logprobs[1:])
    alone = sdk.completions.create(
        model="mock", prompt="the fox", max_tokens=0, echo=True, logprobs=0
    )
    assert alone.choices[0].text == "the fox"
    assert len(alone.choices[0].logprobs.tokens) == len(prompt)
    assert alone.usage.completion_tokens == 0


def parts_of_a_character(state):
    """Three tokens that are one character together."""
    prompt = state.replica.text.encode("\u20ac", special=False)
    assert len(prompt) == 3
    return prompt


def test_bytes_of_a_report_are_those_of_the_token(server, sdk):
    """Of a token that is a part of a character, and with names that are numbers."""
    text = server[0].replica.text
    parts = parts_of_a_character(server[0])
    assert b"".join(text.token_bytes(token) for token in parts) == "\u20ac".encode()
    assert text.token_text(parts[0]) == "bytes:\\xe2"
    for more in ({}, {"return_tokens_as_token_ids": True}):
        found = sdk.chat.completions.create(
            model="mock",
            messages=[{"role": "user", "content": "a"}],
            max_tokens=40,
            logprobs=True,
            extra_body=more,
        ).choices[0]
        written = b"".join(bytes(entry.bytes) for entry in found.logprobs.content)
        assert written.decode(errors="replace") == found.message.content


def test_offsets_are_places_in_the_text_streamed_or_whole(server, sdk):
    prompt = [*server[0].replica.text.encode("the fox"), *parts_of_a_character(server[0])]
    asked = {"model": "mock", "prompt": prompt, "max_tokens": 40, "echo": True, "logprobs": 1}
    whole = sdk.completions.create(**asked).choices[0]
    parts = [part.choices[0] for part in sdk.completions.create(**asked, stream=True)]
    offsets = whole.logprobs.text_offset
    assert offsets == [at for part in parts if part.logprobs for at in part.logprobs.text_offset]
    assert whole.text == "".join(part.text for part in parts)
    named = list(zip(whole.logprobs.tokens, offsets, strict=True))
    spelt = [
        (token, at) for token, at in named[1:] if token[:6] != "bytes:" and token not in SPECIAL
    ]
    assert len(spelt) > 5
    assert [token for token, at in spelt if not whole.text[at:].startswith(token)] == []
    begin = whole.text.index("\u20ac")
    assert [at for token, at in named if token.startswith("bytes:")][:3] == [begin] * 3


def test_usage_of_a_stream_is_of_what_was_sent(sdk):
    asked = {"model": "mock", "prompt": [5, 6], "max_tokens": 6, "n": 3, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = list(sdk.completions.create(**asked, stream_options=options, logprobs=0))
    given = 0
    for event in events:
        given += sum(len(choice.logprobs.tokens) for choice in event.choices)
        assert event.usage.completion_tokens == given
    assert given == 18


@pytest.mark.parametrize(
    "more",
    [
        {"function_call": None, "modalities": ["text"], "verbosity": "low"},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"function_call": "none", "zzz": {"a": 1}, "prompt_cache_retention": "24h"},
    ],
)
def test_fields_of_no_effect_are_ignored_and_named_in_the_log(client, monkeypatch, more):
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    said = {"role": "assistant", "content": "b", "reasoning": "r", "id": "m1", "xyz": [{}]}
    body = {**CHAT, "messages": [{"role": "user", "content": [part]}, said], "max_tokens": 1}
    logged = []
    monkeypatch.setattr(gate.log, "info", lambda event, extra: logged.append(extra["fields"]))
    assert client.post("/v1/chat/completions", json={**body, **more}).status_code == 200
    end = time.monotonic() + 10
    while not logged and time.monotonic() < end:
        time.sleep(0.01)
    ignored = logged[0]["ignored"]
    assert "xyz" in ignored
    assert ("zzz" in ignored) == ("zzz" in more)
    assert ("verbosity" in ignored) == ("verbosity" in more)


def test_one_answer_of_one_is_the_best_of_it(client):
    assert client.post("/v1/completions", json={**PROMPT, "best_of": 1}).status_code == 200


def test_a_stop_string_ends_the_answer_before_it(server, sdk):
    state, _ = server
    tokens, text = text_after(state, state.replica.text.encode("a"), 60)
    at = next(
        i
        for i in range(8, 50)
        if text.index(text[i : i + 2]) == i and "\ufffd" not in text[i : i + 2]
    )
    stop = text[at : at + 2]
    for stream in (False, True):
        asked = {"model": "mock", "prompt": "a", "max_tokens": 60, "stop": ["zzz", stop]}
        if stream:
            events = list(sdk.completions.create(**asked, stream=True))
            shown = "".join(event.choices[0].text for event in events)
            choice = events[-1].choices[0]
        else:
            found = sdk.completions.create(**asked)
            choice = found.choices[0]
            shown = choice.text
            count = found.usage.completion_tokens
            assert state.replica.text.decode(tokens[:count]).endswith(stop) or stop in text
            assert count < 60
        assert shown == text[:at]
        assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    kept = sdk.completions.create(**asked, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == text[: at + 2]


def test_a_stop_token_ends_it_and_has_no_text(server, sdk):
    state, _ = server
    tokens, _ = text_after(state, [5, 6], 30)
    at = next(i for i in range(5, 30) if tokens.index(tokens[i]) == i)
    found = sdk.completions.create(
        model="mock", prompt=[5, 6], max_tokens=30, extra_body={"stop_token_ids": [tokens[at]]}
    )
    assert found.choices[0].text == state.replica.text.decode(tokens[:at])
    assert found.choices[0].finish_reason == "stop"
    assert found.usage.completion_tokens == at + 1


def test_a_chat_is_what_its_template_makes_of_it(server, sdk):
    state, _ = server
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    messages = [{"role": "user", "content": [{"type": "text", "text": "the mat"}]}]
    written = "<s><|user|>the mat" + json.dumps(tools) + "<|assistant|>"
    prompt = state.replica.text.encode(written, special=False)
    asked = {"model": "mock", "messages": messages, "tools": tools, "max_tokens": 12}
    found = sdk.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    assert found.usage.prompt_tokens == len(prompt)
    assert found.choices[0].message.content == text_after(state, prompt, 12)[1]
    content = found.choices[0].logprobs.content
    assert len(content) == 12
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    events = list(sdk.chat.completions.create(**asked, stream=True))
    assert events[0].choices[0].delta.role == "assistant"
    assert {event.object for event in events} == {"chat.completion.chunk"}
    shown = "".join(event.choices[0].delta.content or "" for event in events)
    assert shown == found.choices[0].message.content
    follow = [*messages, found.choices[0].message.model_dump(), {"role": "user", "content": "on"}]
    assert sdk.chat.completions.create(model="mock", messages=follow, max_tokens=1).choices


def test_models_and_tokens(client, sdk):
    assert [model.id for model in sdk.models.list()] == ["mock"]
    assert sdk.models.retrieve("mock").id == "mock"
    made = client.post("/tokenize", json={"prompt": "the — mat"}).json()
    assert made["count"] == len(made["tokens"])
    assert made["tokens"][0] == 0
    back = client.post("/detokenize", json={"tokens": made["tokens"][1:]}).json()
    assert back == {"prompt": "the — mat"}
    chat = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False}
    tokens = client.post("/tokenize", json=chat).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == "<s><|user|>hi"


def test_what_the_server_tells_of_itself(client):
    client.post("/v1/completions", json={"prompt": [3] * 40, "max_tokens": 9})
    text = client.get("/metrics").text
    said = {line.rpartition(" ")[0].partition("{")[0] for line in text.splitlines()}
    assert {
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
        *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total"),
        *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
        *("vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket"),
        *("vllm:inter_token_latency_seconds_sum", "vllm:e2e_request_latency_seconds_count"),
        *("vllm:request_queue_time_seconds_sum", "vllm:cache_config_info"),
    } <= said
    events = client.get("/debug/trace", params={"steps": 5}).json()["traceEvents"]
    steps = [event for event in events if event["ph"] == "X"]
    assert len(steps) == 5
    ends = [(step["ts"], step["ts"] + step["dur"]) for step in steps]
    assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(ends))
    state = client.get("/debug/state").json()
    assert state["pages"]["free"] + state["pages"]["prefix_tree"] == state["pages"]["all"]
    assert state["programs"] == {"compiled": 0, "most": 0}
    assert client.get("/health").status_code == 200
    answer = client.get("/health", headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"


def test_the_state_is_told_while_a_step_takes_long(tmp_path):
    """As one does whose program is compiled."""
    within, on = Event(), Event()

    def wait(_):
        within.set()
        on.wait(20)

    replica = replica_of(folder_of(tmp_path), wait=wait)
    with (
        running(replica) as (state, url),
        httpx.Client(base_url=url) as client,
        ThreadPoolExecutor() as beside,
    ):
        body = {"prompt": "the", "max_tokens": 2}
        answer = beside.submit(client.post, "/v1/completions", json=body, timeout=30)
        assert within.wait(10)
        begun = time.monotonic()
        found = client.get("/debug/state", timeout=10).json()
        assert client.get("/health").status_code == 200
        assert time.monotonic() - begun < 2
        assert found["server"]["answers"] == 1
        assert found["requests"]["running"] == 1
        assert found["step_seconds"] > 0
        on.set()
        assert answer.result().status_code == 200
        nothing_is_held(state)
        assert client.get("/debug/state").json()["step_seconds"] == 0


def test_answers_are_counted_by_path_and_status(client):
    def counted():
        lines = client.get("/metrics").text.splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith("http_requests_total{"))
        return {labels: float(value) for labels, _, value in found}

    before = counted()
    client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    client.post("/v1/completions", json={"prompt": "a", "max_tokens": "many"})
    client.get("/v1/models/another")
    client.get("/nothing/here")
    after = counted()
    added = {labels: count - before.get(labels, 0) for labels, count in after.items()}
    assert {labels: count for labels, count in added.items() if count} == {
        'http_requests_total{handler="/v1/completions",status="200"}': 1,
        'http_requests_total{handler="/v1/completions",status="400"}': 1,
        'http_requests_total{handler="/v1/models/{name}",status="404"}': 1,
        'http_requests_total{handler="none",status="404"}': 1,
        'http_requests_total{handler="/metrics",status="200"}': 1,
    }


def test_an_answer_has_the_id_of_its_request_and_a_refusal_its_reason_in_the_log(
    client, monkeypatch
):
    logged = []
    monkeypatch.setattr(gate.log, "info", lambda event, extra: logged.append(extra["fields"]))
    body = {"prompt": "a", "max_tokens": 1, "store": False, "metadata": {"of": "ours"}}
    said = client.post("/v1/completions", json=body, headers={"X-Request-Id": "mine-2"}).json()
    refused = client.post("/v1/completions", json={**body, "top_p": 2}).json()
    assert said["id"] == "cmpl-mine-2"
    end = time.monotonic() + 10
    while len(logged) < 2 and time.monotonic() < end:  # the line comes after the answer
        time.sleep(0.01)
    ok, bad = logged
    assert ok["request_id"] == "mine-2"
    assert "error" not in ok
    assert bad["error"] == refused["error"]["message"]


PROMPT = {"prompt": "a"}
CHAT = {"messages": [{"role": "user", "content": "a"}]}


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
        ("completions", {**PROMPT, "max_tokens": 0}, "max_tokens", "with echo only"),
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
            "no such field; leave it out",
        ),
        ("completions", {**PROMPT, "stop_token_ids": [999]}, "stop_token_ids", "not below 303"),
        ("completions", {**PROMPT, "guided_json": {}}, "guided_json", "as response_format"),
        ("completions", {**PROMPT, "max_new_tokens": 1}, "max_new_tokens", "'max_tokens'?"),
        (
            "completions",
            {**PROMPT, "stream_options": {"includ_usage": True}},
            "stream_options",
            "stream_options.includ_usage: this server knows no such field; did you mean 'incl",
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
            "messages[0].contents: this server knows no such field; did you mean 'content'?",
        ),
        ("completions", {**PROMPT, "temperature": -1}, "temperature", "at least 0"),
        ("completions", {**PROMPT, "top_p": 0}, "top_p", "above 0"),
        ("completions", {**PROMPT, "logprobs": 21}, "logprobs", "at most 20"),
        ("completions", {**PROMPT, "logit_bias": {"a": 1}}, "logit_bias", "text of the form"),
        ("completions", {**PROMPT, "logit_bias": {"999": 1}}, "logit_bias", "not below 303"),
        ("completions", {**PROMPT, "stop": ""}, "stop", "at least 1 character"),
        ("completions", {**PROMPT, "min_tokens": 17}, "min_tokens", "over max_tokens of 16"),
        ("completions", {**PROMPT, "stream_options": {}}, "stream_options", "with stream only"),
        ("completions", {**PROMPT, "model": "gpt-5"}, "model", "there is no model 'gpt-5'"),
        ("chat/completions", {}, "messages", "required"),
        ("chat/completions", {"messages": []}, "messages", "at least 1"),
        ("chat/completions", {"messages": [{"role": "king"}]}, "messages", "'system'"),
        ("chat/completions", {**CHAT, "top_logprobs": 2}, "top_logprobs", "with logprobs: true"),
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
            "former",
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
            "of its own",
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
