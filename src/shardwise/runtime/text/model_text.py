"""What a checkpoint folder says about text: its tokenizer, the tokens that end an answer, the
sampling that its makers recommend, and its chat template. Nothing of it is executed.

Forms that clients ask for: tried in a fork with limits first, then read here.

A constraint must be where the engine is, so a form is read a second time in this process: by now it
is known to take little, and to end. What takes longer than most is read by a thread of the least
priority, and at most `MOST_LARGE` of those are held at a time, as their automata are large.
"""

import asyncio
import contextlib
import json
import os
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from shardwise.boundary import is_file, is_folder
from shardwise.boundary.forks import BusyError
from shardwise.errors import BadRequest
from shardwise.runtime.text.answer_text import BROKEN
from shardwise.runtime.text.grammar import MOST_CHARACTERS, Constraint, Form, Grammars
from shardwise.runtime.text.rust import from_rust
from shardwise.runtime.text.template import ChatTemplate
from shardwise.runtime.text.text_files import (
    WORDS,
    end_tokens,
    read_object,
    recommended,
    special_tokens,
    template_text,
)
from shardwise.runtime.text.text_jobs import QUICK, TextJobs
from shardwise.runtime.text.tokenizer import BYTE_OF, read_tokenizer
from shardwise.runtime.text.tokenizer_file import REMEDY

KEPT = 32
"""Small forms that are kept: clients ask for the same one again and again."""
MOST_LARGE = 8


class Forms:
    """Constraints of forms, by `grammars` of the same tokenizer as those of `jobs`."""

    def __init__(self, jobs: TextJobs, grammars: Callable[[], Grammars]) -> None:
        self._jobs, self._grammars = jobs, grammars
        self._kept: OrderedDict[str, Constraint] = OrderedDict()
        self._large: weakref.WeakSet[Constraint] = weakref.WeakSet()
        self._slow = ThreadPoolExecutor(1, initializer=_least_priority)

    async def constraint(self, form: Form, what: Any = None) -> Constraint:
        """The start of an answer of a form. Raises BadRequest for one that cannot be read or takes
        too much, BusyError where too many others do."""
        key = json.dumps([form, what], ensure_ascii=False)
        if len(key) > 4 * MOST_CHARACTERS:  # quotes of a text are escaped here
            raise BadRequest(f"{form} has over {MOST_CHARACTERS:,} characters; cut it")
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        seconds = await self._jobs.form_seconds(form, what)
        if seconds > QUICK and len(self._large) >= MOST_LARGE:
            raise BusyError(f"{MOST_LARGE} large forms are in use; try again later")
        pool = self._slow if seconds > QUICK else None
        read = self._grammars().constraint
        found = await asyncio.get_running_loop().run_in_executor(pool, read, form, what)
        if seconds > QUICK:
            self._large.add(found)
        else:
            self._kept[key] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found


def _least_priority() -> None:
    """Linux has a priority for each thread."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    except OSError:
        return


@dataclass(frozen=True, kw_only=True)
class ModelText:
    """Text to tokens and back. `inner` is a tokenizer of the `tokenizers` library, `vocabulary` one
    more than its largest id, `longest` the bytes of its longest token. What a client sent goes
    through `jobs`, beside the event loop and within limits."""

    folder: Path
    inner: Any
    vocabulary: int
    longest: int
    end_ids: frozenset[int] = frozenset()
    defaults: Mapping[str, float]
    template: ChatTemplate | None = None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; `special` adds what the tokenizer puts around each, such as a
        token of the beginning."""
        with from_rust("this model's tokenizer cannot read a text", REMEDY):
            return self.inner.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of tokens; ids that the tokenizer does not know have none."""
        with from_rust("this model's tokenizer cannot write these tokens", REMEDY):
            return self.inner.decode(ids, skip_special_tokens=skip_special)

    @cached_property
    def jobs(self) -> TextJobs:
        """What is done with text that a client sent."""
        return TextJobs(self.folder, self.longest)

    @cached_property
    def grammars(self) -> Grammars:
        """Forms that answers can be held to. Raises MissingPart without llguidance."""
        return Grammars(self.inner, self.vocabulary, sorted(self.end_ids))

    @cached_property
    def forms(self) -> Forms:
        """Forms that clients ask for."""
        return Forms(self.jobs, lambda: self.grammars)

    @cached_property
    def special(self) -> frozenset[str]:
        """Special tokens, which a text for readers is without."""
        added = self.inner.get_added_tokens_decoder().values()
        return frozenset(token.content for token in added if token.special and token.content)

    @property
    def spelt_ends(self) -> Sequence[str]:
        """Each token that ends an answer and is ordinary text, as a warning names it: an answer
        whose text has it ends there."""
        added = self.inner.get_added_tokens_decoder()
        texts = {i: self.decode([i]) for i in sorted(self.end_ids) if i not in added}
        return [f"{i} ({text!r})" for i, text in texts.items() if text]

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to the bytes of a text, which may be a part of a character."""
        return _token_bytes(self.inner, token)

    def token_text(self, token: int) -> str:
        """One token as reports of logprobs show it: its text, or `bytes:\\xe2\\x82` where it is
        a part of a character, as OpenAI's API writes it."""
        found = self.token_bytes(token)
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)


@lru_cache(maxsize=2**16)
def _token_bytes(inner: Any, token: int) -> bytes:
    text = inner.decode([token], skip_special_tokens=False)
    piece = inner.id_to_token(token) or ""
    if BROKEN not in text or token in inner.get_added_tokens_decoder():
        return text.encode()
    if fallback := _FALLBACK.fullmatch(piece):
        return bytes([int(fallback[1], 16)])
    with contextlib.suppress(KeyError):
        return bytes(BYTE_OF[letter] for letter in piece)
    return text.encode()


_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte that sentencepiece has no other token for."""


def read_model_text(folder: Path) -> ModelText:
    """The text side of a checkpoint folder. Raises BadRequest where there is none, where it has no
    tokenizer.json, or a file that cannot be read."""
    path = folder / "tokenizer.json"
    if not is_folder(folder):
        raise BadRequest(
            f"'{folder}' is not a folder; give the folder of a checkpoint (config.json, "
            "safetensors, tokenizer.json), or a plan for one"
        )
    if not is_file(path):
        raise BadRequest(
            f"'{folder}' has no tokenizer.json; put the model's tokenizer.json beside its weights "
            "(`transformers` writes it: AutoTokenizer.from_pretrained(...).save_pretrained(DIR))"
        )
    inner, _ = read_tokenizer(path)
    ids: Mapping[str, int] = inner.get_vocab(with_added_tokens=True)
    words = read_object(folder / WORDS)
    special = special_tokens(words)
    end = ids.get(special.get("eos_token", ""))
    template = template_text(folder, words)
    return ModelText(
        folder=folder,
        inner=inner,
        vocabulary=max(ids.values()) + 1,
        longest=max(len(token.encode("utf-8", "replace")) for token in ids),
        end_ids=end_tokens(folder) | (frozenset() if end is None else {end}),
        defaults=recommended(folder),
        template=None if template is None else ChatTemplate(template, special),
    )
