"""Tokenizers: bytes as they are, or a file of the `tokenizers` library."""

import hashlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardwise.errors import BadRequest, MissingPart
from shardwise.runtime.text.rust import from_rust
from shardwise.runtime.text.tokenizer_file import REMEDY, read_document

ENDS = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
"""Tokens that end a document in one family of tokenizers or another; the first found is taken."""
MOST_TOKENS = 2**22
"""Of a vocabulary: 16 times the largest that is published."""


_FOR_BYTES = (
    "give --tokenizer FILE, or a model with vocab_size 257 or more: byte ids are 0 to 255, and "
    "256 ends a document"
)


class Tokenizer(Protocol):
    """Text to ids below `vocabulary`; `end` closes a document, None where there is no such token.
    `name` says which tokenizer made a checkpoint."""

    name: str
    vocabulary: int
    end: int | None

    def encode(self, text: bytes) -> np.ndarray:
        """The ids of one document, without its end."""
        ...


class Bytes:
    """Every byte is its own token; 256 ends a document.

    >>> Bytes().encode(b"hi").tolist()
    [104, 105]
    """

    name = "bytes"
    vocabulary = 257
    end: int | None = 256

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, np.uint8)


def _letters() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for: printable ones of Latin-1
    themselves, the others in order from U+0100 (GPT-2's `bytes_to_unicode`)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF = _letters()


def bytes_document() -> dict[str, Any]:
    """The tokenizer.json of `Bytes`: byte pairs without a pair."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    level["use_regex"] = False
    end = {"id": Bytes.end, "content": "<|endoftext|>", "special": True}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": BYTE_OF, "merges": []},
    }


def read_tokenizer(path: Path) -> tuple[Any, str]:
    """A tokenizer.json as the library's own object, which neither cuts nor fills up a text, and a
    name that says which file it was. Raises BadRequest for a file that is none."""
    try:
        from tokenizers import Tokenizer as Read
    except ImportError:
        raise MissingPart(
            "reading a tokenizer file needs `tokenizers`: pip install '.[run]'"
        ) from None
    document = read_document(path)
    with from_rust(f"'{path}' is not a tokenizer.json", REMEDY):
        inner: Any = Read.from_str(document.checked)
        ids = inner.get_vocab(with_added_tokens=True)
    if not ids or max(ids.values()) >= MOST_TOKENS:
        said = f"ids up to {max(ids.values()):,}" if ids else "no tokens"
        raise BadRequest(
            f"the vocabulary of the tokenizer '{path}' has {said}; it must have ids from 0 to "
            f"{MOST_TOKENS - 1:,}: {REMEDY}"
        )
    # What was cut or filled up before has other tokens now.
    whole = "".join(f"-without-{name}" for name in document.switched_off)
    digest = hashlib.sha256(document.text.encode()).hexdigest()[:16]
    return inner, f"tokenizers:{digest}{whole}"


class FromFile:
    """A tokenizer.json of the `tokenizers` library. Raises BadRequest for a file that is none."""

    def __init__(self, path: Path) -> None:
        self._inner, self.name = read_tokenizer(path)
        self._path = path
        ids = self._inner.get_vocab(with_added_tokens=True)
        self.vocabulary = max(ids.values()) + 1
        self.end: int | None = next((ids[name] for name in ENDS if name in ids), None)

    def encode(self, text: bytes) -> np.ndarray:
        words = text.decode("utf-8", errors="replace")
        with from_rust(f"the tokenizer '{self._path}' cannot read a text", REMEDY):
            found = self._inner.encode(words, add_special_tokens=False).ids
        return np.asarray(found, np.uint32)


def tokenizer_of(path: Path | None, vocabulary: int) -> Tokenizer:
    """Bytes, or those of a file; raises BadRequest where the model's vocabulary is too small."""
    made: Tokenizer = Bytes() if path is None else FromFile(path)
    if made.vocabulary > vocabulary:
        raise BadRequest(
            f"the tokenizer '{path or 'bytes'}' gives ids up to {made.vocabulary - 1:,} and the "
            f"model has a vocabulary of {vocabulary:,}; "
            + (_FOR_BYTES if path is None else "give the tokenizer of this model")
        )
    return made
