"""The `openai` package: what its types say of each answer, and its errors."""

import json
from importlib.metadata import version
from pathlib import Path

import openai
import pytest

NEEDS = ()


def run(url: str, folder: Path, programs: Path | None = None) -> dict:
    """Every way of asking once; the figures of the record."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
        model = sdk.models.list().data[0].id
        whole, logprobs = _completions(sdk, model)
        _stops(sdk, model, whole)
        _chats(sdk, model)
        _tools(sdk, model)
        _responses(sdk, model)
        _embeddings(sdk, model)
        refused = _errors(sdk, model)
    return {"version": version("openai"), "logprobs": logprobs, "errors": refused}


def _completions(sdk: openai.OpenAI, model: str) -> tuple[str, int]:
    asked = {"model": model, "prompt": "A matmul is bound by", "max_tokens": 12, "temperature": 0}
    found = sdk.completions.create(**asked, logprobs=3)
    choice = found.choices[0]
    assert found.usage.completion_tokens == 12
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.tokens) == 12
    # By their texts two tokens may be one: halves of characters look alike.
    by_id = sdk.completions.create(
        **asked, logprobs=3, extra_body={"return_tokens_as_token_ids": True}
    )
    assert all(3 <= len(top) <= 4 for top in by_id.choices[0].logprobs.top_logprobs)
    assert all(
        value <= 0 and value == max(top.values())
        for value, top in zip(
            choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
        )
    )
    options = {"include_usage": True}
    events = list(sdk.completions.create(**asked, stream=True, stream_options=options))
    assert "".join(e.choices[0].text for e in events if e.choices) == choice.text
    assert events[-1].usage.completion_tokens == 12
    assert events[-2].choices[0].finish_reason == "length"
    drawn = {**asked, "temperature": 1.0, "seed": 5, "n": 3}
    several = [sdk.completions.create(**drawn).choices for _ in range(2)]
    texts = [[c.text for c in sorted(choices, key=lambda c: c.index)] for choices in several]
    assert len(texts[0]) == 3
    assert texts[0] == texts[1], "the same seed gives the same answers"
    assert len(set(texts[0])) > 1
    return choice.text, len(choice.logprobs.tokens)


def _stops(sdk: openai.OpenAI, model: str, text: str) -> None:
    """An answer that ends before a piece of itself."""
    middle = len(text) // 2
    stop = text[middle : middle + 2]
    asked = {"model": model, "prompt": "A matmul is bound by", "max_tokens": 12, "temperature": 0}
    for stream in (False, True):
        found = sdk.completions.create(**asked, stop=[stop], stream=stream)
        choices = [event.choices[0] for event in found] if stream else found.choices
        assert "".join(choice.text for choice in choices) == text[: text.index(stop)]
        assert choices[-1].finish_reason == "stop"


def _chats(sdk: openai.OpenAI, model: str) -> None:
    turn = {"role": "user", "content": "What bounds a matmul?"}
    asked = {"model": model, "messages": [turn], "max_completion_tokens": 10, "temperature": 0}
    found = sdk.chat.completions.create(**asked, logprobs=True, top_logprobs=2, n=2)
    assert [len(choice.logprobs.content) for choice in found.choices] == [10, 10]
    message = found.choices[0].message
    assert message.role == "assistant"
    assert message.content == found.choices[1].message.content
    shown = "".join(
        event.choices[0].delta.content or ""
        for event in sdk.chat.completions.create(**asked, stream=True)
    )
    assert shown == message.content
    again = [turn, message.model_dump(), {"role": "user", "content": "And then?"}]
    second = sdk.chat.completions.create(model=model, messages=again, max_completion_tokens=2)
    assert second.usage.prompt_tokens > found.usage.prompt_tokens


FUNCTION = {
    "name": "look",
    "parameters": {
        "type": "object",
        "properties": {"where": {"enum": ["here", "there"]}},
        "required": ["where"],
        "additionalProperties": False,
    },
}


def _tools(sdk: openai.OpenAI, model: str) -> None:
    """A call of a function that must be made, whole and streamed."""
    asked = {"model": model, "messages": [{"role": "user", "content": "Where?"}]}
    asked |= {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
    asked |= {"parallel_tool_calls": False, "max_completion_tokens": 60}
    found = sdk.chat.completions.create(**asked).choices[0]
    assert found.finish_reason == "tool_calls"
    (call,) = found.message.tool_calls
    assert json.loads(call.function.arguments)["where"] in ("here", "there")
    with sdk.chat.completions.stream(**asked) as stream:
        (again,) = stream.get_final_completion().choices[0].message.tool_calls
    assert again.function.name == "look"


def _responses(sdk: openai.OpenAI, model: str) -> None:
    """Text and a call by the newer API, whole and as events."""
    asked = {"model": model, "input": "What bounds a matmul?", "max_output_tokens": 10}
    found = sdk.responses.create(**asked, temperature=0)
    assert found.usage.output_tokens == 10
    assert found.incomplete_details.reason == "max_output_tokens"
    events = list(sdk.responses.create(**asked, temperature=0, stream=True))
    shown = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert shown == events[-1].response.output_text == found.output_text
    tool = {"type": "function", **FUNCTION}
    asked |= {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    asked["max_output_tokens"] = 60
    with sdk.responses.stream(**asked) as stream:
        (call,) = stream.get_final_response().output
    assert json.loads(call.arguments)["where"] in ("here", "there")


def _embeddings(sdk: openai.OpenAI, model: str) -> None:
    """Vectors as bytes, which the package asks for, and as floats."""
    texts = ["What bounds a matmul?", "the"]
    found = [one.embedding for one in sdk.embeddings.create(model=model, input=texts).data]
    floats = sdk.embeddings.create(model=model, input=texts, encoding_format="float").data
    for one, vector in zip(floats, found, strict=True):
        assert one.embedding == pytest.approx(vector)
    assert all(sum(x * x for x in vector) == pytest.approx(1) for vector in found)
    with pytest.raises(openai.BadRequestError) as error:
        sdk.embeddings.create(model=model, input=texts, dimensions=8)
    assert error.value.param == "dimensions"


def _errors(sdk: openai.OpenAI, model: str) -> int:
    """Refusals of the classes that the package has for them, which name the field."""
    wrong = [
        ("temperature", openai.BadRequestError, {"temperature": 1000}),
        ("max_tokens", openai.BadRequestError, {"max_tokens": 10**6}),
        ("prompt", openai.BadRequestError, {"prompt": []}),
        ("max_token", openai.BadRequestError, {"extra_body": {"max_token": 1}}),
        ("model", openai.NotFoundError, {"model": "another"}),
    ]
    for param, kind, changed in wrong:
        with pytest.raises(kind) as error:
            sdk.completions.create(**{"model": model, "prompt": "a", **changed})
        assert error.value.param == param
    return len(wrong)
