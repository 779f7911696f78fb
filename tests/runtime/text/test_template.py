"""Chat templates: as transformers renders them, and nothing else of the machine."""

import asyncio
from pathlib import Path

import pytest
from tests.apps.server.made import TEMPLATE, folder_of

from shardwise.errors import BadRequest
from shardwise.runtime.text.model_text import read_model_text
from shardwise.runtime.text.template import ChatTemplate

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a <b> é"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"é": "<"}}}]
LOOP = """{%- for m in messages %}
    {% if loop.first %}{% continue %}{% endif %}
{{ m.content }}
{% endfor %}"""
BODY = """{% for m in messages %}
{% generation %}{{ m.content | trim }}{% endgeneration %}{% endfor %}"""
COUNTS = """{% set ns = namespace(n=0) %}
{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}
{{ ns.n }}{{ messages | tojson(indent=1) }}{{ strftime_now('%Y') }}"""
TEMPLATES = [TEMPLATE, LOOP, BODY, COUNTS]


@pytest.mark.torch
@pytest.mark.parametrize("text", TEMPLATES)
def test_a_template_renders_as_transformers_renders_it(text):
    from transformers.utils.chat_template_utils import render_jinja_template

    ours = ChatTemplate(text, {"bos_token": "<s>"})
    for tools in (None, TOOLS):
        theirs, _ = render_jinja_template(
            [CHAT], tools=tools, chat_template=text, add_generation_prompt=True, bos_token="<s>"
        )
        assert ours.render(CHAT, tools=tools) == theirs[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% for %}", "is not Jinja"),
        ("{{ raise_exception('no system') }}", "refuses these messages: no system"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe"),
        ("{{ range(10**9) | length }}", "Range too big"),
        ("{% include 'x' %}", "no loader"),
        ("{{ nothing.there }}", "undefined"),
    ],
)
def test_what_a_template_may_not_do_is_refused(text, said):
    with pytest.raises(BadRequest, match="chat template") as error:
        ChatTemplate(text, {}).render(CHAT)
    assert said in str(error.value)


@pytest.mark.slow
def test_a_template_that_explodes_while_it_is_compiled_is_refused(tmp_path):
    """Jinja computes what is constant: within the child's limits, and not in this process."""
    for text in ("{{ 'a' * 10 ** 9 }}", "{{ 9 ** (9 ** 9) }}"):
        jobs = read_model_text(folder_of(tmp_path, chat_template=text)).jobs
        given = {"messages": CHAT, "tools": None, "add_generation_prompt": True, "more": {}}
        try:
            with pytest.raises(BadRequest, match="takes more than"):
                asyncio.run(jobs.chat(given, 100))
            child = jobs._child._held.child
            assert child is not None
            (peak,) = (
                line.split()[1]
                for line in Path(f"/proc/{child.process.pid}/status").read_text().splitlines()
                if line.startswith("VmHWM")
            )
            assert int(peak) < 600_000
        finally:
            jobs.stop()


def test_a_folder_says_ends_defaults_and_template(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9], "top_k": 20}')
    text = read_model_text(folder)
    assert text.end_ids == {1, 7, 9}
    assert text.defaults == {"top_k": 20}
    assert text.encode("the")[0] == 0
    assert text.template is not None
    (folder / "chat_template.jinja").write_text("J{{ bos_token }}")
    again = read_model_text(folder).template
    assert again is not None
    assert again.render([]) == "J<s>"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(BadRequest, match=r"has no tokenizer\.json; put the model's tokenizer"):
        read_model_text(tmp_path)
