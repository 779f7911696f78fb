"""What people call the models of the zoo: Hugging Face ids, short names, names of tuned models.

`data/names.csv` has the names that a zoo file does not have itself: `hf_id`, the `model` of the zoo
with the same shape, further `names`, and the `source` that says so. An id that ends in "/" is
another spelling of an owner.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path

from shardwise.boundary import read_table
from shardwise.errors import BadRequest, shown

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeantModel:
    """A model of the zoo that a word means; `source` says why, "" where the name is its own."""

    model: str
    source: str = ""


@lru_cache(maxsize=1)
def zoo_names() -> tuple[str, ...]:
    """Names that `load_model` knows, sorted."""
    return tuple(sorted(path.stem for path in DATA.glob("*.json")))


@lru_cache(maxsize=1)
def _hub_ids() -> Mapping[str, str]:
    """Names by the Hugging Face id that a zoo file says its shape is of. Reads every file."""
    held = {name: json.loads((DATA / f"{name}.json").read_bytes()) for name in zoo_names()}
    return {zoo["provenance"]["hf_id"]: name for name, zoo in held.items()}


@lru_cache(maxsize=1)
def _rows() -> tuple[Mapping[str, str], ...]:
    """The rows of `data/names.csv`, without those of owners."""
    return tuple(row for row in _named() if not row["hf_id"].endswith("/"))


@lru_cache(maxsize=1)
def _owners() -> Mapping[str, str]:
    """Owners in small letters by their other spellings."""
    owners = (row for row in _named() if row["hf_id"].endswith("/"))
    return {row["hf_id"][:-1].lower(): row["model"][:-1].lower() for row in owners}


@lru_cache(maxsize=1)
def _named() -> tuple[Mapping[str, str], ...]:
    columns = ("hf_id", "model", "names", "source")
    return tuple(read_table(DATA / "names.csv", "the names", needed=columns).rows)


def hub_id(name: str) -> str | None:
    """The Hugging Face id of a model of the zoo; None for one that is none of it."""
    return next((found for found, own in _hub_ids().items() if own == name.lower()), None)


def of_hub(hub_id: str) -> str | None:
    """The model of the zoo with a Hugging Face id, or with one of another owner whose last part is
    the same; None where there is none."""
    ids = {known.lower(): name for known, name in _hub_ids().items()}
    ends = {known.rpartition("/")[2]: name for known, name in ids.items()}
    text = hub_id.lower()
    near = ids.get(text) or ends.get(text.rpartition("/")[2]) or _renamed(text, ids)
    found = meant(hub_id) if near is None else None
    return found.model if found else near


def meant(text: str) -> MeantModel | None:
    """The one model of the zoo that an id or a word means, or None.

    >>> meant("nemotron-3-nano").model, meant("llama-3.3-70b").model, meant("codellama")
    ('nemotron-3-nano-30b-a3b', 'llama-3.1-70b', None)
    """
    word = text.lower()
    if "/" not in word:
        return _short_name(word)
    word = word.partition(":")[0]  # OpenRouter's ":free"
    ids = {known.lower(): name for known, name in _hub_ids().items()}
    if word in ids:
        return MeantModel(model=ids[word])
    for row in _rows():
        if _squeezed(row["hf_id"].lower()) == _squeezed(word):
            return MeantModel(model=row["model"], source=row["source"])
    if renamed := _renamed(word, ids):
        return MeantModel(model=renamed)
    owner, _, name = word.partition("/")
    found = _short_name(name) if owner in _owners() else None
    owned = found and (hub_id(found.model) or "").lower().startswith(f"{_owners()[owner]}/")
    return found if owned else None


def _renamed(text: str, ids: Mapping[str, str]) -> str | None:
    """The one model of the owner whose id differs from `text` in what says nothing of its shape: a
    tuned one has that of its base, and owners drop their own name from an id."""
    owner, _, name = text.rpartition("/")
    alike = {own for known, own in ids.items() if known.rpartition("/")[0] == owner
             and _bare(known.rpartition("/")[2]) == _bare(name)}  # fmt: skip
    return alike.pop() if len(alike) == 1 else None


def _short_name(text: str) -> MeantModel | None:
    """The one model of the zoo that a word without an owner means: a name of `data/names.csv`, the
    last part of its Hugging Face id, its name with other hyphens, or its name without the size of
    its experts."""
    word = _squeezed(text)
    for row in _rows():
        names = (*row["names"].split(), row["hf_id"].lower().rpartition("/")[2])
        if word in map(_squeezed, filter(None, names)):
            return MeantModel(model=row["model"], source=row["source"])
    ends = {own: known.lower().rpartition("/")[2] for known, own in _hub_ids().items()}
    alike = {own for own, end in ends.items() if word in (_squeezed(own), _squeezed(end))}
    longer = {own for own in ends if own.startswith(_bare(text) + "-")}
    if not alike and all(_SIZE_LEFT_OUT.fullmatch(own.removeprefix(_bare(text))) for own in longer):
        alike = longer
    return MeantModel(model=alike.pop()) if len(alike) == 1 else None


def _squeezed(name: str) -> str:
    return re.sub(r"[-_ ]", "", _bare(name))


def _bare(name: str) -> str:
    return _OF_NO_SHAPE.sub("", name.removeprefix("meta-"))


_OF_NO_SHAPE = re.compile(r"(-(instruct|thinking|it|chat|base|hf|bf16)(-\d{4})?)+$")
_SIZE_LEFT_OUT = re.compile(r"-(\d+(\.\d+)?[bt]-)?a\d+(\.\d+)?b")
"""The end of a name that says the size of a mixture of experts, or its active part alone."""


def unknown_model(text: str) -> BadRequest:
    """The error for a word that means none: first the names that start as it does, then those that
    are spelt nearly so."""
    remedy = "`shardwise model list` shows all; or give the path of a config.json"
    word = text.lower().partition(":")[0]
    owner, _, name = word.rpartition("/")
    ids = {known.lower(): known for known in _hub_ids()}
    near = [ids[known] for known in _near(word, ids) if known.startswith(f"{owner}/")]
    if owner and near:
        hint = f"{_did_you_mean(near)} or give the path of its config.json"
        return BadRequest(f"unknown model {shown(text)}; {hint}")
    near = _near(name, zoo_names())
    if owner:
        like = f", or name a model of the same shape: {near[0]}" if near else ""
        return BadRequest(
            f"unknown model {shown(text)}; give the path of its config.json{like} "
            "(`shardwise model list` shows the zoo)"
        )
    hint = _did_you_mean(near) if near else "no known name is similar"
    return BadRequest(f"unknown model {shown(text)}; {hint} ({remedy})")


def _did_you_mean(names: list[str]) -> str:
    return "did you mean " + " or ".join(f"'{name}'" for name in names) + "?"


def _near(word: str, known: Mapping[str, str] | tuple[str, ...]) -> list[str]:
    """The three names that are most like a word, best first: those of its family, which start with
    its words up to the first that differs, before others that are spelt like it."""
    ranked = sorted(known, key=lambda name: (-_alike(word, name), name))
    return [name for name in ranked[:3] if _alike(word, name) >= _LIKE]


_LIKE = 0.7
"""Least likeness of a suggestion; one of the same family has 1 and more."""


def _alike(word: str, name: str) -> float:
    ratio = SequenceMatcher(None, word, name).ratio()
    ours, theirs = re.findall(_WORDS, word), re.findall(_WORDS, name)
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
        shared += 1
    family = shared >= min(2, len(ours))
    return ratio + (shared if family else 0)


_WORDS = r"[a-z]+|\d+(?:\.\d+)*[a-z]*"
