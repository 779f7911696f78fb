"""A tokenizer.json, before the library reads it: what could explode is refused by name, and what
would change a text's length without a word (`truncation`, `padding`) is switched off."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardwise.boundary import is_file, parse_json, read_text
from shardwise.errors import BadRequest, shown

FILE_BYTES = 64 * 2**20
"""Gemma's, the largest of the known ones, has 33 MB."""
MOST_LISTS, MOST_VALUES = 2_000_000, 5_000_000
"""Of a file, as far as brackets and commas tell: each is an object once it is read."""
MOST_GROWTH = 256
"""Characters that one may become before or after it is a token; published ones make 18 at most."""
MOST_AROUND = 1024
"""Tokens that a tokenizer puts around a text."""
LONGEST_PART = 256
"""Characters of an affix of words or pieces."""
SWITCHED_OFF = ("padding", "truncation")
AFFIXES = ("prefix", "suffix", "prepend", "continuing_subword_prefix", "end_of_word_suffix")
REMEDY = "use the file from the model's own folder"


class TokenizerDocument(NamedTuple):
    """What the library is given, the text of the file, and what of it is switched off."""

    checked: str
    text: str
    switched_off: Sequence[str]


def read_document(path: Path) -> TokenizerDocument:
    """A tokenizer.json that is safe to load. Raises BadRequest."""
    if path.exists() and not is_file(path):
        raise BadRequest(f"cannot read the tokenizer '{path}': it is not a file; {REMEDY}")
    text = read_text(path, "the tokenizer", most=FILE_BYTES)
    lists = text.count("[") + text.count("{")
    if lists > MOST_LISTS or text.count(",") > MOST_VALUES:
        raise BadRequest(
            f"the tokenizer '{path}' has more than {MOST_LISTS:,} lists or {MOST_VALUES:,} values; "
            f"{REMEDY}"
        )
    found = parse_json(text, f"the tokenizer '{path}'", remedy=REMEDY)
    if not isinstance(found, dict):
        raise BadRequest(f"'{path}' is not a tokenizer.json: it is not a JSON object; {REMEDY}")
    off = [name for name in SWITCHED_OFF if found.get(name) is not None]
    found.update(dict.fromkeys(off))
    try:
        _check(found)
    except BadRequest as error:
        raise BadRequest(f"'{path}' is not a tokenizer.json: {error}; {REMEDY}") from None
    return TokenizerDocument(json.dumps(found), text, off)


def _check(found: Mapping[str, Any]) -> None:
    """Refuse what makes much of little. What is not even of the right type the library refuses."""
    for place in ("normalizer", "decoder"):
        _check_growth(place, list(_steps(found.get(place))))
    around = sum(map(_around, _steps(found.get("post_processor"))))
    if around > MOST_AROUND:
        raise BadRequest(f"it puts {around:,} tokens around a text; the limit is {MOST_AROUND:,}")
    for part in ("normalizer", "pre_tokenizer", "model", "decoder"):
        for step in _steps(found.get(part)):
            for name in AFFIXES:
                if len(str(step.get(name) or "")) > LONGEST_PART:
                    raise BadRequest(f"{part}.{name} has over {LONGEST_PART} characters")


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of a part, those within a sequence one by one."""
    if not isinstance(part, dict):
        return
    inner = [part.get(name) for name in ("normalizers", "pretokenizers", "processors", "decoders")]
    held = [step for steps in inner if isinstance(steps, list) for step in steps]
    if not held:
        yield part
    for step in held:
        yield from _steps(step)


def _check_growth(place: str, steps: Sequence[Mapping[str, Any]]) -> None:
    """Refuse replacements that feed each other: what each finds is put through all of them."""
    pairs = [_replacement(step) for step in steps if step.get("type") == "Replace"]
    found = list(dict.fromkeys(found or "x" for found, _ in pairs))
    for start in found or ():
        text = start
        for what, put in pairs:
            count = len(text) + 1 if not what else text.count(what)
            if len(text) + count * len(put) > MOST_GROWTH * len(start) + MOST_GROWTH:
                raise BadRequest(
                    f"the replacements of its {place} turn {shown(start)} into over "
                    f"{MOST_GROWTH} characters"
                )
            text = text.replace(what, put) if what else put * count + text


def _replacement(step: Mapping[str, Any]) -> tuple[str, str]:
    """What a step replaces, and by what; "" may be anything, as a pattern may."""
    pattern = step.get("pattern")
    what = pattern.get("String") if isinstance(pattern, dict) else ""
    put = step.get("content")
    return what if isinstance(what, str) else "", put if isinstance(put, str) else ""


def _around(step: Mapping[str, Any]) -> int:
    """Tokens that a step of the post-processor adds to two texts."""
    known, count = step.get("special_tokens"), 0
    pieces = [p for key in ("single", "pair") for p in _listed(step.get(key))]
    for piece in pieces:
        token = piece.get("SpecialToken") if isinstance(piece, dict) else None
        name = token.get("id") if isinstance(token, dict) else None
        entry = known.get(name) if isinstance(known, dict) and isinstance(name, str) else None
        count += len(_listed(entry.get("ids"))) if isinstance(entry, dict) else 1
    return count


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
