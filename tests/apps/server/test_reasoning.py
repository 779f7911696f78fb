"""Reasoning of chats: apart from the answer, whole and streamed, and before an answer in a form."""

import json
import re
from dataclasses import replace

import openai
import pytest
from tests.apps.server.made import TEMPLATE, folder_of, nothing_is_held, replica_of
from tests.runtime.engine import mock

from shardwise.apps.server.run import running
from shardwise.commands.run.serving import ServeModelRequest
from shardwise.errors import BadRequest
from shardwise.runtime.text.model_text import read_model_text
from shardwise.runtime.text.reasoning import reasoning_format

ASKED = {"model": "mock", "messages": [{"role": "user", "content": "the fox"}], "max_tokens": 60}
THINKS = TEMPLATE + (
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% for m in messages if m.reasoning_content %}{{ m.reasoning_content }}{% endfor %}"
)
SAID = "<think>\na fox\n</think>\n\non the mat</s>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that has tokens for the marks of its reasoning."""
    made = folder_of(tmp_path_factory.mktemp("checkpoint"), chat_template=THINKS)
    words = json.loads((made / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    first = max(words["model"]["vocab"].values()) + 1
    for token, mark in enumerate(("<think>", "</think>"), first):
        words["added_tokens"].append({"id": token, "content": mark, **flags})
    (made / "tokenizer.json").write_text(json.dumps(words))
    return made


@pytest.fixture(scope="module")
def sdk(folder):
    text = read_model_text(folder)
    made = replica_of(folder, ends=True)
    with running(replace(made, reasoning=reasoning_format(None, text.template))) as (state, url):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
            yield found
        nothing_is_held(state)


@pytest.fixture
def says(folder, monkeypatch):
    """Makes the model say a text, whatever it is asked."""
    text = read_model_text(folder)

    def say(said):
        script, begun = text.encode(said, special=False), []

        def token(tokens, _):
            begun.append(len(tokens))
            return script[min(len(tokens) - begun[0], len(script) - 1)]

        monkeypatch.setattr(mock, "mock_token", token)

    return say


def streamed(sdk, **asked):
    """Reasoning, text and usage of a stream."""
    thought, text, usage = "", "", None
    options = {"include_usage": True}
    for event in sdk.chat.completions.create(**ASKED, **asked, stream=True, stream_options=options):
        for choice in event.choices:
            more = choice.delta.model_extra
            assert more.get("reasoning") == more.get("reasoning_content")
            thought, text = thought + more.get("reasoning", ""), text + (choice.delta.content or "")
        usage = event.usage or usage
    assert usage is not None
    return thought or None, text or None, usage.completion_tokens_details.reasoning_tokens


def whole(sdk, **asked):
    """The same of a whole answer."""
    found = sdk.chat.completions.create(**ASKED, **asked)
    message = found.choices[0].message
    assert message.model_extra["reasoning"] == message.model_extra["reasoning_content"]
    count = found.usage.completion_tokens_details.reasoning_tokens
    return message.model_extra["reasoning"], message.content, count


def kwargs(**more):
    return {"extra_body": {"chat_template_kwargs": more}}


@pytest.mark.parametrize("ask", [whole, streamed])
def test_reasoning_is_apart_from_the_answer(sdk, says, folder, ask):
    count = len(read_model_text(folder).encode(SAID.partition("\n\n")[0], special=False))
    says(SAID)
    assert ask(sdk) == ("a fox", "on the mat", count)
    says("on the mat</s>")
    assert ask(sdk, **kwargs(enable_thinking=False)) == (None, "on the mat", 0)
    says("<think>the lazy dog</s>")
    assert ask(sdk)[:2] == ("the lazy dog", None)


def test_it_can_be_left_out(sdk, says):
    says(SAID)
    found = sdk.chat.completions.create(**ASKED, extra_body={"include_reasoning": False})
    message = found.choices[0].message
    assert message.content == "on the mat"
    assert "reasoning" not in message.model_extra


def test_a_form_holds_what_comes_behind_it(sdk, says):
    form = {"structured_outputs": {"regex": re.escape("the cat")}}
    says(SAID)
    assert whole(sdk, extra_body=form)[:2] == ("a fox", "the cat")
    says("the cat")
    assert whole(sdk, extra_body=form)[:2] == (None, "the cat")
    off = form | kwargs(enable_thinking=False)["extra_body"]
    found = sdk.chat.completions.create(**ASKED, extra_body=off).choices[0].message
    assert found.content == "the cat"


def test_responses_have_it_as_an_item(sdk, says):
    says(SAID)
    found = sdk.responses.create(model="mock", input="the fox", max_output_tokens=60)
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.output[0].content[0].text == "a fox"
    assert found.output_text == "on the mat"
    with sdk.responses.stream(model="mock", input="the fox", max_output_tokens=60) as stream:
        assert stream.get_final_response().output_text == "on the mat"


def test_it_goes_back_to_the_template(sdk):
    def tokens(**more):
        turn = {"role": "assistant", "content": "mat", **more}
        asked = {**ASKED, "messages": [*ASKED["messages"], turn], "max_tokens": 1}
        return sdk.chat.completions.create(**asked).usage.prompt_tokens

    assert tokens(reasoning="a fox") == tokens(reasoning_content="a fox") > tokens()


def test_an_unknown_parser_is_refused():
    with pytest.raises(BadRequest, match=r"--reasoning-parser.*qwen3"):
        ServeModelRequest(path="x", reasoning_parser="qwen9")
