"""The door of a checkpoint's small text files: ids of tokens, sampling, words, templates.

config.json, generation_config.json, tokenizer_config.json and chat_template.jinja are other
people's. Each value that is taken of them has its type and its range here, and a message names the
file, the key and what stands there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shardwise.boundary import is_file, read_json, read_text
from shardwise.errors import BadRequest, shown

GENERATION, CONFIG, WORDS = "generation_config.json", "config.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
REMEDY = "use the file from the model's own folder"
MOST_IDS = 4096
MOST_ID = 2**31 - 1


class Range(NamedTuple):
    """Numbers from `least` (not itself, where it is `open`) to `most`."""

    least: float
    most: float
    open: bool = False
    whole: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        above = value > self.least if self.open else value >= self.least
        return above and value <= self.most and (not self.whole or value == int(value))

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} {'above' if self.open else 'from'} {self.least:g} to {self.most:g}"


RECOMMENDED: Mapping[str, Range] = {
    "temperature": Range(0, 100),
    "top_p": Range(0, 1, open=True),
    "top_k": Range(-1, MOST_ID, whole=True),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(0, 100, open=True),
}
"""Keys of generation_config.json that hold where a request leaves them out, as vLLM does it."""


def end_tokens(folder: Path) -> frozenset[int]:
    """The ids that end an answer, by generation_config.json, else by config.json."""
    for name in (GENERATION, CONFIG):
        path = folder / name
        found = read_object(path).get("eos_token_id")
        if found is not None:
            return token_ids(found, path, "eos_token_id")
    return frozenset()


def token_ids(value: Any, path: Path, key: str) -> frozenset[int]:
    """A token's number, or several; those below 0 name none. Raises BadRequest."""
    ids = value if isinstance(value, list) else [value]
    right = all(type(one) is int and one <= MOST_ID for one in ids) and len(ids) <= MOST_IDS
    if not right:
        raise _wrong(path, key, value, "a token id, or a list of token ids")
    return frozenset(one for one in ids if one >= 0)


def recommended(folder: Path) -> Mapping[str, float]:
    """The sampling that the model's makers recommend. Raises BadRequest."""
    path = folder / GENERATION
    found = read_object(path)
    sampled = found.get("do_sample")
    if sampled is not None and not isinstance(sampled, bool):
        raise _wrong(path, "do_sample", sampled, "true or false")
    given = (
        {} if sampled is False else {k: v for k in RECOMMENDED if (v := found.get(k)) is not None}
    )
    for key, value in given.items():
        if value not in RECOMMENDED[key]:
            raise _wrong(path, key, value, str(RECOMMENDED[key]))
    return given


def special_tokens(words: Mapping[str, Any]) -> Mapping[str, str]:
    """The special tokens of tokenizer_config.json by name, each a text, or an object whose
    `content` it is."""
    found = {}
    for name, token in words.items():
        spelt = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(spelt, str) and spelt:
            found[name] = spelt
    return found


def template_text(folder: Path, words: Mapping[str, Any]) -> str | None:
    """The chat template of chat_template.jinja, else of tokenizer_config.json; of several the one
    named `default`. Raises BadRequest."""
    path = folder / TEMPLATE
    if is_file(path):
        return read_text(path, "the chat template")
    found, where = words.get("chat_template"), folder / WORDS
    if isinstance(found, list):
        named = [one if isinstance(one, dict) else {} for one in found]
        if not all(isinstance(one.get("name"), str) for one in named):
            raise _wrong(where, "chat_template", found, "a text, or a list of names and texts")
        found = next((one.get("template") for one in named if one["name"] == "default"), None)
    if found is not None and not isinstance(found, str):
        raise _wrong(where, "chat_template", found, "a text, or a list of names and texts")
    return found


def read_object(path: Path) -> Mapping[str, Any]:
    """A file that a folder may lack. Raises BadRequest."""
    found = read_json(path, path.name, remedy=REMEDY) if is_file(path) else {}
    if not isinstance(found, dict):
        raise BadRequest(f"'{path}' is not a JSON object; {REMEDY}")
    return found


def _wrong(path: Path, key: str, value: Any, rule: str) -> BadRequest:
    return BadRequest(f"'{path}': {key} is {shown(value)}; it must be {rule}: fix it, or {REMEDY}")
