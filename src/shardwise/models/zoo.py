"""The zoo: models by name, one small file each, and `load_model` for names and paths.

A zoo file is JSON of our own form: `provenance` (where the shape was found, and what was done to
it) and `config`, the keys of the model's config.json that the reader of `hf.py` reads and no other.
Long lists stand under `runs`, by dotted name, as [block, times] pairs. `scripts/make_zoo.py`
writes them. Counts are never stored: they are computed.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardwise.boundary import is_file, is_folder
from shardwise.errors import BadRequest, shown, unknown
from shardwise.models.config import ModelConfig
from shardwise.models.hf import from_hf, raw_config, read_config

DATA = Path(__file__).parent / "data"


@lru_cache(maxsize=1)
def zoo_names() -> tuple[str, ...]:
    """Names that `load_model` knows, sorted."""
    return tuple(sorted(path.stem for path in DATA.glob("*.json")))


@lru_cache(maxsize=1)
def _hub_ids() -> Mapping[str, str]:
    """Names by the Hugging Face id that a zoo file says its shape is of. Reads every file."""
    held = {name: json.loads((DATA / f"{name}.json").read_bytes()) for name in zoo_names()}
    return {zoo["provenance"]["hf_id"]: name for name, zoo in held.items()}


def hub_id(name: str) -> str | None:
    """The Hugging Face id of a model of the zoo; None for one that is none of it."""
    return next((found for found, own in _hub_ids().items() if own == name.lower()), None)


def of_hub(hub_id: str) -> str | None:
    """The model of the zoo with a Hugging Face id, or with one of another owner whose last part is
    the same; None where there is none."""
    ids = {known.lower(): name for known, name in _hub_ids().items()}
    ends = {known.rpartition("/")[2]: name for known, name in ids.items()}
    text = hub_id.lower()
    return ids.get(text) or ends.get(text.rpartition("/")[2]) or _renamed(text, ids)


def _renamed(text: str, ids: Mapping[str, str]) -> str | None:
    """The one model of the owner whose id differs from `text` in what says nothing of its shape: a
    tuned one has that of its base, and owners drop their own name from an id."""
    owner, _, name = text.rpartition("/")
    alike = {own for known, own in ids.items() if known.rpartition("/")[0] == owner
             and _bare(known.rpartition("/")[2]) == _bare(name)}  # fmt: skip
    return alike.pop() if len(alike) == 1 else None


def _bare(name: str) -> str:
    return _OF_NO_SHAPE.sub("", name.removeprefix("meta-"))


_OF_NO_SHAPE = re.compile(r"(-(instruct|thinking|it|chat|base|hf|bf16)(-\d{4})?)+$")
_SIZE_LEFT_OUT = re.compile(r"-(\d+(\.\d+)?[bt]-)?a\d+(\.\d+)?b")
"""The end of a name that says the size of a mixture of experts, or its active part alone."""


@lru_cache(maxsize=32)
def load_model(name_or_path: str | Path) -> ModelConfig:
    """A model by zoo name, by the path of a config.json, by a directory that holds one, by the
    Hugging Face id of a zoo model, or written out as a class and keys of its config.json.

    A path may have '#' and the class or model type behind it that it is to be read as, where its
    own is not known. A name that is in the zoo is never taken for a path; write
    ./NAME for a directory of that name. A directory goes before an id. Raises BadRequest, with the
    nearest names for a typo.

    >>> load_model("llama-3-70b").layers
    80
    """
    word, family = split_family(name_or_path)
    if (config := written_config(word)) is not None:
        return from_hf(config, name=word, file="the model", family=family)
    found = _find(word)
    if found.parent == DATA and not family:
        return _from_zoo(found)
    if found.parent == DATA:
        raise BadRequest(f"model {shown(word)} is in the zoo; leave out its family, {family}")
    return read_config(found, family)


def split_family(name_or_path: str | Path) -> tuple[str, str]:
    """A model's word and, behind '#', the family it is read as; a path that exists is whole.

    >>> split_family("new/config.json#LlamaForCausalLM"), split_family("llama-3-8b")
    (('new/config.json', 'LlamaForCausalLM'), ('llama-3-8b', ''))
    """
    whole = str(name_or_path)
    word, mark, family = whole.rpartition("#")
    if not mark or is_file(Path(whole)) or is_folder(Path(whole)):
        return whole, ""
    return (word, family) if "/" not in family else (whole, "")


def with_family(name_or_path: str | Path, family: str | None) -> str | Path:
    """The model's word with the family of --as behind it.

    >>> with_family("new/config.json", "LlamaForCausalLM"), with_family("llama-3-8b", None)
    ('new/config.json#LlamaForCausalLM', 'llama-3-8b')
    """
    return f"{name_or_path}#{family}" if family else name_or_path


def with_families(names: Sequence[str], family: str | None) -> list[str]:
    """Those of several models' words that are no model of the zoo, with the family of --as behind
    them. Raises BadRequest where all are of the zoo."""
    if not family:
        return list(names)
    unread = [name for name in names if _find(split_family(name)[0]).parent != DATA]
    if not unread:
        raise BadRequest(f"--as {family} is for a config.json, and all these are in the zoo")
    return [str(with_family(name, family)) if name in unread else name for name in names]


def hf_config(name_or_path: str | Path) -> dict[str, Any]:
    """The config.json of the model that `load_model` reads."""
    if (config := written_config(split_family(name_or_path)[0])) is not None:
        return config
    found = _find(split_family(name_or_path)[0])
    if found.parent == DATA:
        return _held(found)[1]
    return raw_config(found)


def written_config(text: str) -> dict[str, Any] | None:
    """The config of a model that is written out; None for any other word. Raises BadRequest where
    it is not written as in the example.

    >>> written_config("LlamaForCausalLM(hidden_size=64, tie_word_embeddings=True)")
    {'architectures': ['LlamaForCausalLM'], 'hidden_size': 64, 'tie_word_embeddings': True}
    """
    if not re.fullmatch(r"[A-Za-z]\w{0,80}\(.{0,4000}\)", text):
        return None
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert not call.args
        given = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
        raise BadRequest(
            f"the model {shown(text)} cannot be read; write a class and its keys, such as "
            "LlamaForCausalLM(hidden_size=4096, num_hidden_layers=32)"
        ) from None
    return {"architectures": [text.partition("(")[0]], **given}


def _find(name_or_path: str | Path) -> Path:
    """The file of the zoo, or the config.json, that a name or a path means."""
    text = str(name_or_path)
    if not text.strip():
        raise BadRequest(f"the model name '{text}' is empty; give a zoo name or a config.json")
    zoo_file = DATA / f"{text.lower()}.json"
    if "/" not in text and is_file(zoo_file):
        return zoo_file
    path = Path(name_or_path)
    if is_folder(path):
        inside = path / "config.json"
        if not is_file(inside):
            raise BadRequest(f"directory {shown(text)} holds no config.json; give one that does")
        return inside
    if is_file(path):
        return path
    if path.suffix == ".json" or text.startswith((".", "/")):
        raise BadRequest(f"there is no file {shown(text)}; give a config.json or a zoo name")
    ids = _hub_ids() if "/" in text else {}
    known = {hub_id.lower(): name for hub_id, name in ids.items()}
    named = known.get(text.lower()) or (_renamed(text.lower(), known) if ids else None)
    if named is not None:
        return DATA / f"{named}.json"
    if ids:
        raise _unknown_id(text, ids)
    remedy = "`shardwise model list` shows all; or give the path of a config.json"
    if short := _short_name(text.lower()):
        return DATA / f"{short}.json"
    raise unknown("model", text, zoo_names(), remedy)


def _short_name(text: str) -> str | None:
    """The one model of the zoo that a word without an owner means: the last part of its Hugging
    Face id, its name with other hyphens, or its name without the size of its experts.

    >>> _short_name("nemotron-3-nano"), _short_name("qwen3.6-35b"), _short_name("codellama")
    ('nemotron-3-nano-30b-a3b', 'qwen3.6-35b-a3b', None)
    """
    word = _squeezed(text)
    ends = {own: known.lower().rpartition("/")[2] for known, own in _hub_ids().items()}
    alike = {own for own, end in ends.items() if word in (_squeezed(own), _squeezed(end))}
    longer = {own for own in ends if own.startswith(_bare(text) + "-")}
    if not alike and all(_SIZE_LEFT_OUT.fullmatch(own.removeprefix(_bare(text))) for own in longer):
        alike = longer
    return alike.pop() if len(alike) == 1 else None


def _squeezed(name: str) -> str:
    return re.sub(r"[-_ ]", "", _bare(name))


def _unknown_id(text: str, ids: Mapping[str, str]) -> BadRequest:
    """The error for a Hugging Face id that the zoo lacks: the ids spelt nearly so, else the model
    that the end of its name has, which a tuned one most often has the shape of."""
    near = get_close_matches(text, ids, n=3, cutoff=0.8)
    if near:
        hint = "did you mean " + " or ".join(f"'{name}'" for name in near) + "? or "
        return BadRequest(f"unknown model {shown(text)}; {hint}give the path of its config.json")
    base = get_close_matches(text.rpartition("/")[2].lower(), zoo_names(), n=1, cutoff=0.8)
    like = f", or where it has the shape of one of the zoo, that: {base[0]}" if base else ""
    return BadRequest(
        f"unknown model {shown(text)}; give the path of its config.json{like} "
        "(`shardwise model list` shows the zoo)"
    )


def _from_zoo(path: Path) -> ModelConfig:
    held, config = _held(path)
    return from_hf(config, name=path.stem, file=path.name, provenance=held["provenance"])


def _held(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    held = json.loads(path.read_text(encoding="utf-8"))
    return held, unpack(held["config"], held.get("runs", {}))


def unpack(config: Mapping[str, Any], runs: Mapping[str, list[list[Any]]]) -> dict[str, Any]:
    """The config with its lists of repeated blocks written out.

    >>> unpack({"a": {"b": 1}}, {"a.c": [[["x"], 2], [["y", "z"], 1]]})
    {'a': {'b': 1, 'c': ['x', 'x', 'y', 'z']}}
    """
    whole = _copy(config)
    for dotted, pairs in runs.items():
        *sections, key = dotted.split(".")
        target = whole
        for section in sections:
            target = target[section]
        target[key] = [value for block, times in pairs for value in block * times]
    return whole


def _copy(section: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copy(v) if isinstance(v, Mapping) else v for k, v in section.items()}
