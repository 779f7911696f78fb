"""Chat templates: Jinja of a checkpoint, in a sandbox, as `transformers` renders them.

A template sees messages, tools and special tokens, and nothing else: attributes that begin with an
underscore, imports and files are out of its reach, and it cannot change what it is given.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from shardwise.errors import BadRequest, MissingPart
from shardwise.runtime.text.rust import one_line

LONGEST_TEMPLATE = 512 * 1024
"""Characters; the longest that is published has 20,000."""


class ChatTemplate:
    """A template's text and the special tokens that it may name (`bos_token`, ...)."""

    def __init__(self, text: str, special: Mapping[str, str]) -> None:
        self.text = text
        self._special = special
        self._compiled: Any = None

    def compile(self) -> None:
        """Make it ready for `render`. Raises BadRequest where it is not a template."""
        if self._compiled is None:
            self._compiled = _compiled(self.text)

    @property
    def takes_tools(self) -> bool:
        """Whether it writes the tools that it is given."""
        return re.search(r"\btools\b", self.text) is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The prompt of a chat; `more` are other variables of the template. Raises BadRequest where
        the template is none, or refuses it. Its time and memory have no end of their own: a fork
        (`boundary/forks.py`) gives them one."""
        self.compile()
        given = {
            **self._special,
            **more,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._compiled.render(given)
        except MemoryError:
            raise
        except Exception as error:  # a template may raise anything, and is not ours
            said = one_line(str(error) or type(error).__name__)
            raise BadRequest(f"the chat template refuses these messages: {said}") from None


def _compiled(text: str) -> Any:
    try:
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingPart("chat templates need jinja2: pip install '.[serve]'") from None

    class GenerationTag(Extension):
        """{% generation %} marks what the model said, for training; here it is its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            parser.stream.skip()
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body)

    if len(text) > LONGEST_TEMPLATE:
        raise BadRequest(f"the chat template has over {LONGEST_TEMPLATE:,} characters")
    room = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    room.filters["tojson"] = _tojson
    room.globals["raise_exception"] = _refuse
    room.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return room.from_string(text)
    except MemoryError:
        raise
    except Exception as error:  # it becomes Python, whose compiler refuses 21 nested loops
        said = one_line(str(error) or type(error).__name__)
        raise BadRequest(f"the checkpoint's chat template is not Jinja: {said}") from None


def _tojson(value: Any, indent: int | None = None) -> str:
    """Not Jinja's own, which escapes HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise ValueError(message)
