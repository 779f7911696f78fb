"""Calls of tools: read from what models write, in any pieces, and held to their form."""

import json
from random import Random

import pytest
from tests.apps.server.made import folder_of
from tests.runtime.text.test_grammar import walk

from shardwise.runtime.text.model_text import read_model_text
from shardwise.runtime.text.template import ChatTemplate
from shardwise.runtime.text.tool_calls import CallReader
from shardwise.runtime.text.tool_formats import TOOL_FORMATS, tool_format

TOOLS = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Ulm", "Bern"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "now": None,
}
ULM, BERN = {"city": "Ulm", "days": 2}, {"city": 'Be"}rn', "days": 1}
WRITTEN = {
    "hermes": """<tool_call>
{"name": "weather", "arguments": {"city": "Ulm", "days": 2}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"city": "Be\\"}rn", "days": 1}}
</tool_call>""",
    "llama3_json": '{"name": "weather", "parameters": {"city": "Ulm", "days": 2}}; '
    '{"type": "function", "name": "weather", "parameters": {"city": "Be\\"}rn", "days": 1}}',
    "mistral": '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Ulm", "days": 2}}, '
    '{"arguments": {"city": "Be\\"}rn", "days": 1}, "name": "weather"}]',
    "mistral_named": '[TOOL_CALLS]weather[ARGS]{"city": "Ulm", "days": 2}'
    '[TOOL_CALLS]weather[ARGS]{"city": "Be\\"}rn", "days": 1}',
    "granite": '<|tool_call|>[{"name": "weather", "arguments": {"city": "Ulm", "days": 2}}, '
    '{"name": "weather", "arguments": {"city": "Be\\"}rn", "days": 1}}]',
    "jamba": '<tool_calls>[\n{"name": "weather", "arguments": {"city": "Ulm", "days": 2}},\n'
    '{"name": "weather", "arguments": "{\\"city\\": \\"Be\\\\\\"}rn\\", \\"days\\": 1}"}\n'
    "]</tool_calls>",
    "deepseek_v3": """<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
```json
{"city": "Ulm", "days": 2}
```<｜tool▁call▁end｜>
<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
```json
{"city": "Be\\"}rn", "days": 1}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>""",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
    '{"city": "Ulm", "days": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>'
    '{"city": "Be\\"}rn", "days": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "qwen3_coder": """<tool_call>
<function=weather>
<parameter=city>
Ulm
</parameter>
<parameter=days>
2
</parameter>
</function>
</tool_call>
<tool_call>
<function=weather>
<parameter=city>
Be"}rn
</parameter>
<parameter=days>
1
</parameter>
</function>
</tool_call>""",
    "glm": """<tool_call>weather
<arg_key>city</arg_key>
<arg_value>Ulm</arg_value>
<arg_key>days</arg_key>
<arg_value>2</arg_value>
</tool_call>
<tool_call>weather
<arg_key>city</arg_key>
<arg_value>Be"}rn</arg_value>
<arg_key>days</arg_key>
<arg_value>1</arg_value>
</tool_call>""",
}


def read(name, pieces, most=None):
    """The text, and name and arguments of each call."""
    reader = CallReader(TOOL_FORMATS[name], TOOLS, most)
    text, calls, ids = "", {}, {}
    found = [reader.add(piece) for piece in pieces] + [reader.add("", last=True)]
    for parts in found:
        text += parts.text
        for part in parts.calls:
            if part.id is not None:
                ids[part.index], calls[part.index] = part.id, [part.name, ""]
            calls[part.index][1] += part.arguments
    assert list(calls) == list(range(len(calls)))
    assert len(set(ids.values())) == len(ids)
    return text, [tuple(call) for call in calls.values()]


def cut(text, draw):
    places = sorted(draw.sample(range(len(text)), min(len(text) - 1, draw.choice([1, 5, 60]))))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_calls_are_read_in_any_pieces(name):
    draw, written = Random(0), WRITTEN[name]
    bare = TOOL_FORMATS[name].bare
    for pieces in ([written], list(written), *(cut(written, draw) for _ in range(30))):
        text, calls = read(name, pieces)
        assert text == ""
        assert [(n, json.loads(a)) for n, a in calls] == [("weather", ULM), ("weather", BERN)]
    _, calls = read(name, [written], most=1)
    assert len(calls) == 1
    if not bare:
        assert read(name, list(f"I look.\n\n{written}\n"))[0] == "I look."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>\nno object\n</tool_call> and on"),
        ("hermes", 'a <tool_call>{"name": 3}</tool_call>'),
        ("hermes", '<tool_call>\n{"nam'),
        ("hermes", "half a mark <tool_"),
        ("llama3_json", '{"city": "Ulm", "days": [1, 2]}'),
        ("llama3_json", '{"name": "unknown", "parameters": {"a": 1}}'),
        ("llama3_json", '{"name": "wea'),
        ("llama3_json", "{[}]"),
        ("llama3_json", " \n"),
        ("mistral", "[TOOL_CALLS] none"),
        ("mistral_named", "[TOOL_CALLS]" + "weather " * 60),
        ("deepseek_v31", "<｜tool▁calls▁begin｜> x <｜tool▁calls▁end｜>"),
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nUl"),
        ("glm", "<tool_call>weather\n<arg_key>city</arg_key>"),
    ],
)
def test_what_is_no_call_stays_text(name, text):
    for pieces in ([text], list(text)):
        assert read(name, pieces) == (text, [])


def test_arguments_come_before_the_call_is_whole():
    reader = CallReader(TOOL_FORMATS["hermes"], TOOLS)
    reader.add('<tool_call>\n{"name": "weather", "arguments": ')
    (part,) = reader.add('{"city": "U').calls
    assert (part.name, part.arguments) == ("weather", '{"city": "U')
    (part,) = reader.add('lm"').calls
    assert (part.id, part.name, part.arguments) == (None, None, 'lm"')


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return read_model_text(folder_of(tmp_path_factory.mktemp("checkpoint")))


@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize("parallel", [False, True])
def test_whatever_is_drawn_is_a_call(text, name, parallel):
    functions = [{"name": n, "parameters": p} for n, p in TOOLS.items() if p]
    asked = {"format": name, "functions": functions, "parallel": parallel}
    for seed in range(4):
        written = walk(text, text.grammars.constraint("tools", asked), seed, most=4000)
        left, calls = read(name, list(written))
        assert left == ""
        assert len(calls) == 1 or parallel
        for called, arguments in calls[: 1 if parallel else None]:
            assert called == "weather"
            found = json.loads(arguments)
            assert found["city"] in ("Ulm", "Bern")
            assert 1 <= found["days"] <= 9


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ tools }}<tool_call>{{ x }}</tool_call>", "hermes"),
        ("{{ tools }}<tool_call><function=", "qwen3_coder"),
        ("{{ tools }}<tool_call><arg_key>", "glm"),
        ('{{ tools }}{{ "{\\"name\\": " }}{{ \'"parameters": \' }}', "llama3_json"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}[TOOL_CALLS][ARGS]", "mistral_named"),
        ("{{ tools }}", "none"),
        ("<tool_call>", "none"),
    ],
)
def test_a_template_says_which_format(template, name):
    assert tool_format(None, ChatTemplate(template, {})) == name
    assert tool_format("granite", ChatTemplate(template, {})) == "granite"
