"""The child that reads clients' text: it loads a checkpoint's, and its forks do one job each."""

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise.boundary.forks import Handle, do_if_it_ends
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.runtime.text.grammar import Form
from shardwise.runtime.text.model_text import ModelText, read_model_text
from shardwise.runtime.text.text_jobs import check_length, joined

COMPILE_SECONDS, COMPILE_BYTES = 2.0, 256 * 2**20
"""Of a chat template: Jinja computes what is constant in it while it compiles."""


def stand(folder: str) -> Handle:
    """Load what jobs need; what does them. What cannot be loaded is said to whoever needs it."""
    text = read_model_text(Path(folder))
    with contextlib.suppress(ShardwiseError):
        _ = text.grammars
    template = text.template
    if template is not None:
        do_if_it_ends(template.compile, COMPILE_SECONDS, COMPILE_BYTES)

    def handle(job: bytes) -> bytes:
        asked = json.loads(job)
        return JOBS[asked.pop("do")](text, **asked)

    return handle


def _encode(text: ModelText, texts: Sequence[str], special: bool) -> bytes:
    return joined([text.encode(one, special=special) for one in texts])


def _chat(text: ModelText, given: Mapping[str, Any], room: int) -> bytes:
    if text.template is None:
        raise BadRequest("this model has no chat template")
    prompt = text.template.render(**given)
    check_length(prompt, text.longest, room)
    return joined([text.encode(prompt, special=False)])  # the template has written them


def _decode(text: ModelText, ids: Sequence[int]) -> bytes:
    return text.decode(ids, skip_special=False).encode()


def _form(text: ModelText, form: Form, what: Any) -> bytes:
    before = time.process_time()
    text.grammars.constraint(form, what)
    return str(time.process_time() - before).encode()


JOBS: Mapping[str, Callable[..., bytes]] = {
    "encode": _encode,
    "chat": _chat,
    "decode": _decode,
    "form": _form,
}
