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
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardwise.boundary import is_file, is_folder
from shardwise.errors import BadRequest, shown
from shardwise.models import spelling
from shardwise.models.config import ModelConfig
from shardwise.models.hf import from_hf, raw_config, read_config
from shardwise.models.spelling import DATA, hub_id, of_hub, zoo_names

__all__ = [
    "DATA",
    "hf_config",
    "hub_id",
    "load_model",
    "of_hub",
    "split_family",
    "unpack",
    "with_families",
    "with_family",
    "written_config",
    "zoo_names",
]


@lru_cache(maxsize=32)
def load_model(name_or_path: str | Path) -> ModelConfig:
    """A model by zoo name, by the path of a config.json, by a directory that holds one, by the
    Hugging Face id of a zoo model, or written out as a class and keys of its config.json.

    PATH#CLASS reads an unknown config as that class or model type. A zoo name goes before a path
    (write ./NAME for a directory of that name), and a directory before an id. Raises BadRequest,
    with the nearest names for a typo.

    >>> load_model("llama-3-70b").layers
    80
    """
    word, family = split_family(name_or_path)
    if (config := written_config(word)) is not None:
        return from_hf(config, name=word, file="the model", family=family)
    found = _find(word)
    if found.parent == DATA and not family:
        return _from_zoo(found, word)
    if found.parent == DATA:
        raise BadRequest(f"model {shown(word)} is in the zoo; leave out the family {family}")
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
        raise BadRequest(f"--as {family} is for a config.json; all these models are in the zoo")
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
        raise BadRequest(f"the file {shown(text)} does not exist; give a config.json or a zoo name")
    if (meant := spelling.meant(text)) is not None:
        return DATA / f"{meant.model}.json"
    raise spelling.unknown_model(text)


@lru_cache(maxsize=512)  # more than there are: a file of another program is held to each of them
def _from_zoo(path: Path, word: str) -> ModelConfig:
    held, config = _held(path)
    provenance = held["provenance"]
    meant = spelling.meant(word) if word.lower() != path.stem else None
    if meant is not None and meant.source:
        provenance = {**provenance, "asked": f"{word} is read as {path.stem}: {meant.source}"}
    return from_hf(config, name=path.stem, file=path.name, provenance=provenance)


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
