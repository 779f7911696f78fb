"""/v1/responses: what chats answer, as items and as the events of OpenAI's API."""

import json
from dataclasses import replace
from typing import Any

import openai
import pytest
from tests.apps.server.made import folder_of, nothing_is_held, replica_of
from tests.apps.server.test_tools import LOOK, WRITTEN

from shardwise.apps.server.answers import AnswerPart
from shardwise.apps.server.chat import ChatForm
from shardwise.apps.server.documents import CachedTokens, ResponseDocument, TokenUsage
from shardwise.apps.server.responses import ResponseWriter
from shardwise.apps.server.run import running
from shardwise.boundary.records import plain
from shardwise.runtime.text.reasoning import REASONING_FORMATS, AnswerReader, ThoughtReader
from shardwise.runtime.text.tool_calls import CallReader
from shardwise.runtime.text.tool_formats import TOOL_FORMATS

TOOL = {"type": "function", **LOOK["function"]}
ASKED = {"model": "mock", "input": "the fox", "max_output_tokens": 500}


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("checkpoint"))
    made = replace(replica_of(folder, ends=True), tool_format="hermes")
    with running(made) as (state, url):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
            yield found
        nothing_is_held(state)


def says(text):
    """Makes the model say a JSON text."""
    schema = {"type": "object", "properties": {"a": {"const": text}}, "required": ["a"]}
    schema["additionalProperties"] = False
    return {"text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}}


def test_a_response_is_what_the_chat_is(sdk):
    asked = {"model": "mock", "temperature": 1, "extra_body": {"seed": 3}}
    chat = sdk.chat.completions.create(
        **asked, max_tokens=9, messages=[{"role": "user", "content": "the fox"}]
    )
    found = sdk.responses.create(**asked, input="the fox", max_output_tokens=9)
    assert found.output_text == chat.choices[0].message.content
    assert found.usage.input_tokens == chat.usage.prompt_tokens
    assert found.usage.output_tokens == 9
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    whole = sdk.responses.create(**ASKED, **says("on the mat"))
    assert whole.status == "completed"
    assert json.loads(whole.output_text) == {"a": "on the mat"}


@pytest.mark.parametrize(
    "asked", [says("on the mat"), {"tools": [TOOL], "tool_choice": "required"}]
)
def test_a_stream_comes_to_what_the_whole_is(sdk, asked):
    asked = {**ASKED, **asked, "parallel_tool_calls": False, "temperature": 0}
    whole = sdk.responses.create(**asked)
    events = list(sdk.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:3] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    last = events[-1].response
    assert last.usage.output_tokens == whole.usage.output_tokens
    deltas = "".join(event.delta for event in events if event.type.endswith(".delta"))
    (item,), (same,) = last.output, whole.output
    if item.type == "message":
        assert deltas == item.content[0].text == whole.output_text
        assert "response.content_part.added" in kinds
        assert "response.output_text.done" in kinds
    else:
        assert deltas == item.arguments == same.arguments
        assert item.name == "look"
        assert "response.function_call_arguments.done" in kinds
    with sdk.responses.stream(**asked) as stream:  # the SDK adds events up by its own rules
        assert stream.get_final_response().output[0].type == item.type


def test_calls_go_back_with_what_they_gave(sdk):
    asked = {**ASKED, "tools": [TOOL], "tool_choice": {"type": "function", "name": "look"}}
    found = sdk.responses.create(**asked, instructions="be brief")
    (call,) = found.output
    assert json.loads(call.arguments).keys() == {"where", "far"}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "the fox"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        *[item.model_dump() for item in found.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "yes"},
    ]
    again = sdk.responses.create(**{**ASKED, "input": items, "max_output_tokens": 4})
    last = {"role": "user", "content": "and then?"}
    items += [*[item.model_dump() for item in again.output], last]
    third = sdk.responses.create(**{**ASKED, "input": items, "max_output_tokens": 4})
    assert third.usage.input_tokens > again.usage.input_tokens


def test_text_and_calls_are_items_of_one_answer():
    tools = {"look": None, "open": None}
    calls = CallReader(TOOL_FORMATS["hermes"], tools)
    thoughts = ThoughtReader(REASONING_FORMATS["qwen3"], True)
    form = ChatForm(str, None, None, lambda: AnswerReader(thoughts, calls))
    asked: dict[str, Any] = {"metadata": {}, "reasoning": {}, "text": {}, "model": "fox"}
    said = ResponseDocument(id="resp_1", created_at=0, **asked)
    writer, events = ResponseWriter(form, said), []
    cached = CachedTokens(cached_tokens=0)
    counts = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    usage = TokenUsage(**counts, prompt_tokens_details=cached)
    answer = "a fox\n</think>\n" + WRITTEN["hermes"]
    pieces = [AnswerPart(text=letter, offsets=[i]) for i, letter in enumerate(answer)]
    for piece in [*pieces, AnswerPart(text="", finish="stop")]:
        events += writer.part(0, piece, lambda: usage)
    events = plain([*events, *writer.last(None, lambda: usage)])
    items = events[-1]["response"]["output"]
    kinds = ["reasoning", "message", "function_call", "function_call"]
    assert [item["type"] for item in items] == kinds
    assert [item["status"] for item in items] == ["completed"] * 4
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "a fox"}]
    told = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(told) == "a fox"
    details = events[-1]["response"]["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": len("a fox\n</think>")}
    assert items[1]["content"][0]["text"] == "I look."
    assert items[2]["arguments"] == '{"where": "mat", "far": true}'
    places = [e["output_index"] for e in events if e["type"] == "response.output_item.done"]
    assert places == [0, 1, 2, 3]
    added = [e["item"] for e in events if e["type"] == "response.output_item.added"]
    assert [item.get("arguments") for item in added] == [None, None, "", ""]


def test_logprobs_are_told_where_they_are_asked_for(sdk):
    include = ["message.output_text.logprobs"]
    found = sdk.responses.create(
        **{**ASKED, "max_output_tokens": 5}, include=include, top_logprobs=2
    )
    report = found.output[0].content[0].logprobs
    assert len(report) == 5
    assert all(len(entry.top_logprobs) == 2 for entry in report)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "s"}}}, "text"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
    ],
)
def test_a_refusal_names_the_field(sdk, fields, param):
    with pytest.raises(openai.BadRequestError) as error:
        sdk.responses.create(**{**ASKED, "extra_body": fields})
    assert error.value.param == param
