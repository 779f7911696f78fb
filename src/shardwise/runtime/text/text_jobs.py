"""What is done with a client's text, in forks with limits: tokens of a text, a chat's prompt, text
of tokens, whether a form can be read.

`TextJobs` is the server's side; `text_child.py` loads the same folder in the child, whose forks do
the work (`boundary/forks.py`). A job is JSON; the tokens that it gives are numbers of 32 bits.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.boundary.forks import ForkingChild, JobLimit
from shardwise.errors import BadRequest

MIB = 2**20
CHILD_BYTES = 8 * 2**30
QUICK, SECONDS = 0.05, 2.0
SECONDS_PER_BYTE = 2e-6
"""Of a text, beyond what each job may take in its first try: tokenizers take a quarter of it."""
BYTES_PER_BYTE = 300
"""Memory of a tokenizer for a text: its pieces with their places."""
FORM = JobLimit(QUICK, 1.0, 128 * MIB, "forms")
"""A form is read once more where it is used, by a thread that nothing can stop."""


class TextJobs:
    """Jobs of one checkpoint's text. `longest` is the bytes of its longest token."""

    def __init__(self, folder: Path, longest: int) -> None:
        self._longest = longest
        target = "shardwise.runtime.text.text_child:stand"
        self._child = ForkingChild(target, str(folder.resolve()), memory_bytes=CHILD_BYTES)

    def start(self) -> None:
        """Let the child begin to load."""
        self._child.start()

    def stop(self) -> None:
        """End the child."""
        self._child.stop()

    async def encode(
        self, texts: Sequence[str], *, special: bool, room: int | None = None
    ) -> list[list[int]]:
        """The tokens of texts. Raises BadRequest, at once for one of more than `room` tokens."""
        for text in texts:
            check_length(text, self._longest, room)
        job = {"do": "encode", "texts": texts, "special": special}
        found = await self._call(job, "reading this text", "send less of it")
        return split(found)

    async def chat(self, given: Mapping[str, Any], room: int) -> list[int]:
        """The tokens of a chat, of the arguments of `ChatTemplate.render`. Raises BadRequest."""
        job = {"do": "chat", "given": given, "room": room}
        what = "rendering these messages with the chat template"
        (found,) = split(await self._call(job, what, "send fewer, or correct the template"))
        return found

    async def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones too. Raises BadRequest."""
        job = {"do": "decode", "ids": list(ids)}
        return (await self._call(job, "writing these tokens", "send fewer")).decode()

    async def form_seconds(self, form: str, what: Any) -> float:
        """The seconds that reading a form takes. Raises BadRequest for one that cannot be read, or
        takes too much."""
        job = json.dumps({"do": "form", "form": form, "what": what}).encode()
        remedy = "simplify it: fewer alternatives, smaller counts and multiples"
        return float(await self._child.call(job, FORM, f"reading this {form}", remedy))

    async def _call(self, job: Mapping[str, Any], what: str, remedy: str) -> bytes:
        data = json.dumps(job).encode()
        quick = QUICK + SECONDS_PER_BYTE * len(data)
        memory = 256 * MIB + BYTES_PER_BYTE * len(data)
        return await self._child.call(data, JobLimit(quick, quick + SECONDS, memory), what, remedy)


def check_length(text: str, longest: int, room: int | None) -> None:
    """Raises BadRequest for a text that has more than `room` tokens even if each is the longest."""
    size = len(text.encode("utf-8", "replace"))
    if room is not None and size > longest * room:
        raise BadRequest(
            f"{size:,} bytes of text, and the model takes {room:,} tokens of at most {longest:,} "
            "bytes, answer included; shorten it"
        )


def joined(lists: Sequence[Sequence[int]]) -> bytes:
    """Lists of tokens as bytes."""
    counts = np.array([len(lists), *map(len, lists)], np.uint32)
    parts = [np.array(ids, np.uint32).tobytes() for ids in lists]
    return b"".join((counts.tobytes(), *parts))


def split(data: bytes) -> list[list[int]]:
    """The lists that `joined` was given."""
    found = np.frombuffer(data, np.uint32)
    ends = 1 + found[0] + np.cumsum(found[1 : 1 + found[0]])
    starts = [1 + found[0], *ends[:-1]]
    return [found[a:b].tolist() for a, b in zip(starts, ends, strict=True)]
