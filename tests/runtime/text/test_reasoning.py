"""What is thought, said and called in an answer, by the formats of models, in pieces."""

import json
from typing import Any

import numpy as np
import pytest

from shardwise.runtime.text.reasoning import (
    REASONING_FORMATS,
    AfterThought,
    AnswerReader,
    ChannelReader,
    ThoughtReader,
    reasoning_format,
)
from shardwise.runtime.text.template import ChatTemplate
from shardwise.runtime.text.tool_calls import CallReader
from shardwise.runtime.text.tool_formats import TOOL_FORMATS

CALL = '<tool_call>\n{"name": "look", "arguments": {"far": true}}\n</tool_call>'
HARMONY = (
    "<|channel|>analysis<|message|>a door?<|end|><|start|>assistant<|channel|>analysis<|message|>"
    "yes<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
)
LOOKS = " to=functions.look<|channel|>commentary <|constrain|>json<|message|>"


def reader(name, opened=None, tools=False):
    row = REASONING_FORMATS[name]
    if row.channels:
        return AnswerReader(ChannelReader(tools=tools), None)
    calls = CallReader(TOOL_FORMATS["hermes"], {"look": None}) if tools else None
    return AnswerReader(ThoughtReader(row, opened), calls)


def read(found, text, size):
    """Reasoning, text and calls of an answer that comes in pieces; each letter is a token."""
    thought, said, calls = "", "", []
    for at in range(0, len(text), size):
        places = range(at, min(at + size, len(text)))
        parts = found.add(text[at : at + size], places, last=at + size >= len(text))
        thought, said = thought + parts.reasoning, said + parts.text
        for part in parts.calls:
            if part.name:
                calls.append([part.name, ""])
            calls[part.index][1] += part.arguments
    return thought, said, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("name", "opened", "text", "expected"),
    [
        ("qwen3", None, "<think>\na <b>\n\nc\n</think>\n\nyes <", ("a <b>\n\nc", "yes <")),
        ("qwen3", None, "\n<think>\n\n</think>\n\nyes", ("", "yes")),
        ("qwen3", None, " yes <think>no</think>", ("", " yes <think>no</think>")),
        ("qwen3", None, "<thin", ("", "<thin")),
        ("qwen3", None, "<think>a </thin", ("a </thin", "")),
        ("qwen3", True, "a\n</think>\n\nyes", ("a", "yes")),
        ("qwen3", True, "<think>\na\n</think>yes", ("a", "yes")),
        ("qwen3", False, "<think>a</think>", ("", "<think>a</think>")),
        ("deepseek_r1", True, "a\n", ("a", "")),
        ("mistral", None, "[THINK]a[/THINK]yes", ("a", "yes")),
        ("seed_oss", None, "<seed:think>a</seed:think>yes", ("a", "yes")),
        ("gemma4", None, "<|channel>thought\na<channel|>yes", ("a", "yes")),
        (
            "granite",
            None,
            "Here is my thought process: a\n\nHere is my response: yes",
            ("a", "yes"),
        ),
        (
            "openai_gptoss",
            None,
            HARMONY + "<|channel|>final<|message|>4.",
            ("a door?\nyes", "I look.4."),
        ),
        ("openai_gptoss", None, "plain text", ("", "plain text")),
        ("openai_gptoss", None, "<|channel|>analysis<|message|>cut", ("cut", "")),
        ("openai_gptoss", None, "<|channel|>analy", ("", "")),
    ],
)
def test_reasoning_is_read_apart(name, opened, text, expected, size):
    assert read(reader(name, opened), text, size)[:2] == expected


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_calls_behind_it_are_read(size):
    found = reader("qwen3", tools=True)
    text = f"<think>\nwhere?\n</think>\n\nI look.\n{CALL}"
    assert read(found, text, size) == ("where?", "I look.", [("look", {"far": True})])
    assert found.tokens == text.index("</think>") + len("</think>")
    found = reader("openai_gptoss", tools=True)
    told = read(found, HARMONY + LOOKS + '{"far": true}<|call|>', size)
    assert told == ("a door?\nyes", "I look.", [("look", {"far": True})])
    assert found.count == 1
    told = read(reader("openai_gptoss"), HARMONY + LOOKS + "{}", size)
    assert told == ("a door?\nyes", "I look.{}", [])


def test_a_prompt_says_whether_an_answer_begins_within_it():
    row = REASONING_FORMATS["qwen3"]
    assert row.begins("hi<|im_end|>\n<|im_start|>assistant\n") is None
    assert row.begins("assistant\n<think>\n") is True
    assert row.begins("assistant\n<think>\n\n</think>\n\n") is False
    assert REASONING_FORMATS["deepseek_r1"].begins("<｜Assistant｜>") is True
    assert REASONING_FORMATS["deepseek_r1"].begins("<｜Assistant｜></think>") is False


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ c.split('</think>')[-1] }}", "qwen3"),
        ("{{ '<｜Assistant｜>' + c.split('</think>')[-1] }}", "deepseek_r1"),
        ("<|start|>assistant<|channel|>final<|message|>", "openai_gptoss"),
        ("<seed:think></seed:think>", "seed_oss"),
        ("[THINK][/THINK]", "mistral"),
        ("<|im_start|>assistant", "none"),
    ],
)
def test_a_template_says_which_format(template, name):
    assert reasoning_format(None, ChatTemplate(template, {})) == name
    assert reasoning_format("granite", ChatTemplate(template, {})) == "granite"
    assert reasoning_format(None, None) == "none"


class OneToken:
    """A form that is the token 7."""

    complete = False

    def fresh(self):
        return OneToken()

    def allowed(self):
        return np.array([1 << 7, 0], np.uint32)

    def take(self, token):
        self.complete = token == 7
        return "" if self.complete else "no"

    @property
    def done(self):
        return self.complete


def tokens(form):
    return set(np.flatnonzero(np.unpackbits(form.allowed().view(np.uint8), bitorder="little")))


def test_a_form_begins_behind_the_reasoning():
    one: Any = OneToken()
    form = AfterThought(one, 3, [4, 5], [1], opened=False).fresh()
    assert tokens(form) == {3, 7}
    assert form.take(3) == ""
    assert tokens(form) == set(range(64)) - {1}
    for token in (4, 4, 5):
        assert not form.complete
        assert form.take(token) == ""
    assert tokens(form) == {7}
    assert form.take(7) == ""
    assert form.done
    direct = AfterThought(one, 3, [4], [1], opened=False).fresh()
    assert direct.take(7) == ""
    assert direct.complete
    assert tokens(AfterThought(one, 3, [4], [1], opened=True).fresh()) > {7, 9}
