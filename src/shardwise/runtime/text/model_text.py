"""What a checkpoint folder says about text: its tokenizer, the tokens that end an answer, the
sampling that its makers recommend, and its chat template. Nothing of it is executed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from shardwise.boundary import is_file, read_json, read_text
from shardwise.errors import BadRequest
from shardwise.runtime.text.grammar import Grammars
from shardwise.runtime.text.template import ChatTemplate
from shardwise.runtime.text.tokenizer import read_tokenizer

RECOMMENDED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Keys of generation_config.json that hold where a request leaves them out, as vLLM does it."""


@dataclass(frozen=True, kw_only=True)
class ModelText:
    """Text to tokens and back. `inner` is a tokenizer of the `tokenizers` library, `vocabulary` one
    more than its largest id."""

    inner: Any
    vocabulary: int
    end_ids: frozenset[int] = frozenset()
    defaults: Mapping[str, float]
    template: ChatTemplate | None = None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; `special` adds what the tokenizer puts around each, such as a
        token of the beginning."""
        return self.inner.encode(text, add_special_tokens=special).ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of tokens; ids that the tokenizer does not know have none."""
        return self.inner.decode(ids, skip_special_tokens=skip_special)

    @cached_property
    def grammars(self) -> Grammars:
        """Forms that answers can be held to. Raises MissingPart without llguidance."""
        return Grammars(self.inner, self.vocabulary, sorted(self.end_ids))

    @property
    def spelt_ends(self) -> Sequence[str]:
        """Each token that ends an answer and is ordinary text, as a warning names it: an answer
        whose text has it ends there."""
        added = self.inner.get_added_tokens_decoder()
        texts = {i: self.decode([i]) for i in sorted(self.end_ids) if i not in added}
        return [f"{i} ({text!r})" for i, text in texts.items() if text]

    def token_text(self, token: int) -> str:
        """One token as reports of logprobs show it."""
        return _token_text(self.inner, token)


@lru_cache(maxsize=2**16)
def _token_text(inner: Any, token: int) -> str:
    return inner.decode([token], skip_special_tokens=False)


def read_model_text(folder: Path) -> ModelText:
    """The text side of a checkpoint folder. Raises BadRequest where there is none, where it has no
    tokenizer.json, or a file that cannot be read."""
    path = folder / "tokenizer.json"
    if not folder.is_dir():
        raise BadRequest(
            f"'{folder}' is no folder; give that of a checkpoint (config.json, safetensors, "
            "tokenizer.json), or a plan for one"
        )
    if not is_file(path):
        raise BadRequest(
            f"'{folder}' has no tokenizer.json; put the model's own beside its weights "
            "(`transformers` writes it: AutoTokenizer.from_pretrained(...).save_pretrained(DIR))"
        )
    inner, _ = read_tokenizer(path)
    ids: Mapping[str, int] = inner.get_vocab(with_added_tokens=True)
    words = _read(folder / "tokenizer_config.json")
    generation = _read(folder / "generation_config.json")
    special = {name: _spelt(words.get(name)) for name in words if name.endswith("_token")}
    end = ids.get(special.get("eos_token", ""))
    recommended = {
        name: float(generation[name])
        for name in RECOMMENDED
        if isinstance(generation.get(name), int | float) and generation.get("do_sample", True)
    }
    return ModelText(
        inner=inner,
        vocabulary=max(ids.values()) + 1,
        end_ids=end_tokens(folder) | (frozenset() if end is None else {end}),
        defaults=recommended,
        template=_template(folder, words, {k: v for k, v in special.items() if v}),
    )


def end_tokens(folder: Path) -> frozenset[int]:
    """The ids that end an answer, by generation_config.json, else by config.json."""
    for name in ("generation_config.json", "config.json"):
        ids = _read(folder / name).get("eos_token_id")
        if ids is not None:
            return frozenset(ids if isinstance(ids, list) else [ids])
    return frozenset()


def _read(path: Path) -> Mapping[str, Any]:
    """A file that a folder may lack."""
    found = read_json(path, path.name) if is_file(path) else {}
    if not isinstance(found, dict):
        raise BadRequest(f"'{path}' is no JSON object; take it from the model's own folder")
    return found


def _spelt(token: Any) -> str:
    """A special token: a text, or an object whose `content` it is."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def _template(
    folder: Path, words: Mapping[str, Any], special: Mapping[str, str]
) -> ChatTemplate | None:
    """That of chat_template.jinja, else of tokenizer_config.json; of several the one by name."""
    path = folder / "chat_template.jinja"
    if is_file(path):
        return ChatTemplate(read_text(path, "the chat template"), special)
    found = words.get("chat_template")
    if isinstance(found, list):
        named = {e.get("name"): e.get("template") for e in found if isinstance(e, dict)}
        found = named.get("default")
    return ChatTemplate(found, special) if isinstance(found, str) else None
