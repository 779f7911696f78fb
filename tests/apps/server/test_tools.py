"""Tools of chats: calls are read from answers, whole and streamed, and asked for by grammar."""

import json
import re
from dataclasses import replace

import openai
import pytest
from tests.apps.server.made import folder_of, nothing_is_held, replica_of

from shardwise.apps.server.run import running

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"where": {"enum": ["mat", "door"]}, "far": {"type": "boolean"}},
            "required": ["where", "far"],
            "additionalProperties": False,
        },
    },
}
OPEN = {"type": "function", "function": {"name": "open", "parameters": None}}
ASKED = {"model": "mock", "messages": [{"role": "user", "content": "the fox"}]}
WRITTEN = {
    "hermes": """I look.
<tool_call>
{"name": "look", "arguments": {"where": "mat", "far": true}}
</tool_call>
<tool_call>
{"name": "open", "arguments": {}}
</tool_call>""",
    "llama3_json": '{"name": "look", "parameters": {"where": "mat", "far": true}}; '
    '{"name": "open", "parameters": {}}',
}


@pytest.fixture(scope="module", params=WRITTEN)
def served(request, tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp("checkpoint"))
    made = replace(replica_of(folder, ends=True), tool_format=request.param)
    with running(made) as (state, url):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
            yield request.param, sdk
        nothing_is_held(state)


def says(text):
    """Makes the model say a text."""
    return {"extra_body": {"structured_outputs": {"regex": re.escape(text)}}, "max_tokens": 500}


def streamed(sdk, **asked):
    """Text, calls and the reason of the end, of a stream."""
    text, calls, reason = "", {}, None
    for event in sdk.chat.completions.create(**ASKED, **asked, stream=True):
        for choice in event.choices:
            reason = choice.finish_reason or reason
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                if part.id is not None:
                    assert part.index == len(calls)
                    calls[part.index] = [part.function.name, ""]
                calls[part.index][1] += part.function.arguments
    return text, [(name, json.loads(found)) for name, found in calls.values()], reason


def whole(sdk, **asked):
    """The same of a whole answer."""
    (choice,) = sdk.chat.completions.create(**ASKED, **asked).choices
    calls = choice.message.tool_calls or ()
    assert len({call.id for call in calls}) == len(calls)
    found = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    return choice.message.content or "", found, choice.finish_reason


@pytest.mark.parametrize("ask", [whole, streamed])
def test_calls_are_read_from_what_the_model_says(served, ask):
    name, sdk = served
    said = says(WRITTEN[name])
    calls = [("look", {"where": "mat", "far": True}), ("open", {})]
    text = "I look." if name == "hermes" else ""
    assert ask(sdk, tools=[LOOK, OPEN], **said) == (text, calls, "tool_calls")
    one = ask(sdk, tools=[LOOK, OPEN], parallel_tool_calls=False, **said)
    assert one == (text, calls[:1], "tool_calls")
    assert ask(sdk, tools=[LOOK, OPEN], tool_choice="none", **said)[1:] == ([], "stop")
    assert ask(sdk, **said) == (WRITTEN[name], [], "stop")
    assert ask(sdk, tools=[LOOK], **says("no call {")) == ("no call {", [], "stop")


@pytest.mark.parametrize("ask", [whole, streamed])
def test_required_and_named_calls_are_made_whatever_the_model_would_say(served, ask):
    _, sdk = served
    for choice in ("required", {"type": "function", "function": {"name": "look"}}):
        asked = {"tools": [LOOK], "tool_choice": choice, "parallel_tool_calls": False}
        text, calls, reason = ask(sdk, **asked, max_tokens=400)
        assert (text, reason) == ("", "tool_calls")
        ((name, arguments),) = calls
        assert name == "look"
        assert arguments.keys() == {"where", "far"}


def test_an_answer_that_is_cut_within_a_call_says_so(served):
    name, sdk = served
    cut = {**says(WRITTEN[name]), "max_tokens": 40}
    (choice,) = sdk.chat.completions.create(**ASKED, tools=[LOOK], **cut).choices
    assert choice.finish_reason == "length"


def test_calls_go_back_to_the_model_with_what_they_gave(served):
    name, sdk = served
    found = sdk.chat.completions.create(**ASKED, tools=[LOOK, OPEN], **says(WRITTEN[name]))
    message = found.choices[0].message
    given = [{"role": "tool", "tool_call_id": c.id, "content": "yes"} for c in message.tool_calls]
    messages = [*ASKED["messages"], message, *given]
    assert sdk.chat.completions.create(model="mock", messages=messages, max_tokens=1).choices


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tool_choice": "required"}, "tool_choice", "give them as tools"),
        ({"tools": [LOOK, LOOK]}, "tools", "two tools have the same name"),
        (
            {"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "lock"}}},
            "tool_choice",
            "no tool 'lock'",
        ),
        ({"tools": [LOOK], "tool_choice": "always"}, "tool_choice", "'required'"),
    ],
)
def test_what_cannot_be_called_is_refused(served, fields, param, said):
    with pytest.raises(openai.BadRequestError, match=said) as error:
        served[1].chat.completions.create(**ASKED, **fields)
    assert error.value.param == param


def test_without_a_format_no_call_is_promised(tmp_path):
    with (
        running(replica_of(folder_of(tmp_path), ends=True)) as (_, url),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk,
    ):
        assert whole(sdk, tools=[LOOK], **says("<tool_call>")) == ("<tool_call>", [], "stop")
        with pytest.raises(openai.BadRequestError, match="--tool-format"):
            whole(sdk, tools=[LOOK], tool_choice="required")


def test_marks_that_are_special_tokens_are_read(tmp_path):
    """The mark of Mistral's calls is a special token, which texts are without."""
    folder = folder_of(tmp_path)
    words = json.loads((folder / "tokenizer.json").read_text())
    mark = {"id": 400, "content": "[TOOL_CALLS]", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    vocabulary = words["model"]["vocab"]
    mark["id"] = max(vocabulary.values()) + 1
    words["added_tokens"].append({**mark, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(words))
    made = replace(replica_of(folder, ends=True), tool_format="mistral")
    with (
        running(made) as (_, url),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk,
    ):
        asked = {"tools": [LOOK], "tool_choice": "required", "parallel_tool_calls": False}
        (choice,) = sdk.chat.completions.create(**ASKED, **asked, max_tokens=400).choices
        (call,) = choice.message.tool_calls
        assert re.fullmatch("[0-9a-z]{9}", call.id)
        assert choice.message.content is None
