"""Text to batches: one stream of tokens, cut into rows, in an order that a seed fixes.

Documents stand in the order of their paths, each with its end token, and make one stream; row i is
tokens [i T, (i + 1) T] of it, so that a target is always the next token. A row that holds several
documents says so by segments, positions start again at each, and the first token of a document is
nobody's target. Every epoch visits the rows in another order, a permutation that is computed for
single places (`place`), so a run that resumes at step 10^6 reads nothing of what came before.
"""

import codecs
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from shardwise.boundary.outputs import flush
from shardwise.errors import BadRequest, Caution, ShardwiseError
from shardwise.runtime.text.tokenizer import Tokenizer
from shardwise.runtime.trainer.disk import write_text

Batch = dict[str, jax.Array]
COLUMNS = ("tokens", "targets", "weights", "positions", "segments")
_PROBE = 8192
_PATIENCE = 3600.0


@dataclass(frozen=True, slots=True)
class Corpus:
    """The stream, where its documents start, and a hash of both."""

    tokens: np.ndarray
    starts: np.ndarray
    fingerprint: str

    def rows(self, length: int) -> int:
        """How many rows of `length` tokens and their targets the stream has."""
        return (len(self.tokens) - 1) // length


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The batches of a run: `rows` sequences of `length` tokens for any step."""

    corpus: Corpus
    rows: int
    length: int
    seed: int

    def __post_init__(self) -> None:
        if self.corpus.rows(self.length) < 1:
            raise BadRequest(
                f"the data holds {len(self.corpus.tokens):,} tokens, too few for one sequence of "
                f"{self.length:,} and its last target; give more text, or shorten sequence_length"
            )

    def row(self, number: int) -> dict[str, np.ndarray]:
        """Row `number` of the run, counted over all epochs: tokens, targets, weights, positions
        and segments, [T] each."""
        epoch, i = divmod(number, self.corpus.rows(self.length))
        first = place(i, self.corpus.rows(self.length), self.seed, epoch) * self.length
        at = np.arange(first, first + self.length + 1)
        window = np.asarray(self.corpus.tokens[at[0] : at[-1] + 1], np.int32)
        document = np.searchsorted(self.corpus.starts, at, side="right") - 1
        begins = np.maximum(self.corpus.starts[document], first)
        return {
            "tokens": window[:-1],
            "targets": window[1:],
            "weights": (document[1:] == document[:-1]).astype(np.float32),
            "positions": (at - begins)[:-1].astype(np.int32),
            "segments": (document - document[0] + 1)[:-1].astype(np.int32),
        }

    def batch(self, step: int, sharding: jax.sharding.Sharding) -> Batch:
        """The batch of a step (from 0), each array [B, T]; a process reads the rows it holds."""
        held: dict[int, dict[str, np.ndarray]] = {}

        def part(name: str, index: Any) -> np.ndarray:
            rows = range(*index[0].indices(self.rows))
            for b in rows:
                if b not in held:
                    held[b] = self.row(step * self.rows + b)
            return np.stack([held[b][name][index[1]] for b in rows])

        def make(name: str) -> jax.Array:
            return jax.make_array_from_callback(
                (self.rows, self.length), sharding, lambda index: part(name, index)
            )

        return {name: make(name) for name in COLUMNS}


def place(i: int, n: int, seed: int, epoch: int) -> int:
    """Where place i of n goes in the order of (seed, epoch): a permutation in constant time.

    A Feistel network of four rounds on the smallest even number of bits that holds n; what falls
    outside is put through again (Black and Rogaway 2002, cycle walking).

    >>> sorted(place(i, 10, seed=1, epoch=0) for i in range(10)) == list(range(10))
    True
    """
    half = max(1, -(-(n - 1).bit_length() // 2))
    mask = (1 << half) - 1
    while True:
        left, right = i >> half, i & mask
        for turn in range(4):
            left, right = right, left ^ (_mixed(seed, epoch, turn, right) & mask)
        i = left << half | right
        if i < n:
            return i


def _mixed(seed: int, epoch: int, turn: int, value: int) -> int:
    text = b"%d/%d/%d/%d" % (seed, epoch, turn, value)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def corpus_of(
    path: Path,
    tokenizer: Tokenizer,
    cache: Path,
    note: Callable[[str], None] = lambda _: None,
    *,
    writes: bool = True,
) -> Corpus:
    """The stream of a file or a folder, made once and kept in `cache`.

    A folder gives every text file below it but hidden ones and `__pycache__`; `note` hears how many
    others were left out as no text (`is_text`). What is kept is checked against its fingerprint
    (about a second per GB) and made anew where it is damaged, which `note` hears too. Of several
    processes one `writes` and the others wait for it. Raises BadRequest for a path without text.
    """
    files, others = text_files(path)
    if others:
        note(Caution(f"{others:,} file(s) in '{path}' are not UTF-8 text and are skipped"))
    kind = np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.uint32
    folder = cache / _key(path, files, tokenizer)
    if not writes:
        return _await(folder, kind)
    try:
        return _kept(folder, kind)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ShardwiseError(
            f"cannot read the tokens in '{folder}': {error.strerror}; make it readable, or "
            "remove it to read the text again"
        ) from None
    except ValueError as damage:
        note(Caution(f"the tokens in '{folder}' are damaged ({damage}); reading the text again"))
    _tokenise(files, tokenizer, folder, kind)
    return _kept(folder, kind)


def text_files(path: Path) -> tuple[list[Path], int]:
    """The text files of a path in the order of their names, and how many others lie there; raises
    BadRequest without one."""
    if not path.exists():
        raise BadRequest(f"there is no data at '{path}'; give --data a text file or a folder")
    single = path.is_file()
    given = [path] if single else [p for p in sorted(path.rglob("*")) if _is_seen(p, path)]
    full = [p for p in given if p.stat().st_size]
    found = [p for p in full if is_text(p)]
    if single and full and not found:
        raise BadRequest(f"'{path}' is not UTF-8 text; give --data a text file or a folder")
    if not found:
        raise BadRequest(f"'{path}' holds no text; give --data a text file or a folder with some")
    return found, len(full) - len(found)


def _is_seen(file: Path, root: Path) -> bool:
    inside = file.relative_to(root).parts
    hidden = any(part.startswith(".") or part == "__pycache__" for part in inside)
    return not hidden and file.is_file()


def is_text(file: Path) -> bool:
    """Whether the first 8 KiB of a file are UTF-8 without a NUL byte."""
    with file.open("rb") as opened:
        begin = opened.read(_PROBE)
    try:
        # A character that the probe cuts in two is none that is wrong.
        codecs.getincrementaldecoder("utf-8")().decode(begin, final=len(begin) < _PROBE)
    except UnicodeDecodeError:
        return False
    return b"\0" not in begin


def _key(path: Path, files: list[Path], tokenizer: Tokenizer) -> str:
    """A name for the stream of these files as they are now."""
    parts = [tokenizer.name]
    for file in files:
        found = file.stat()
        parts.append(f"{os.path.relpath(file, path)} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _kept(folder: Path, kind: type) -> Corpus:
    """The stream of a folder. Raises FileNotFoundError where there is none, and ValueError where it
    is not what was written."""
    text = (folder / "corpus.json").read_text(encoding="utf-8")
    try:
        about = json.loads(text)
        starts, total = np.asarray(about["starts"]), about["tokens"]
        fingerprint = about["fingerprint"]
        if (
            type(total) is not int
            or starts.dtype.kind != "i"
            or starts.ndim != 1
            or (np.diff(starts, append=total) < 0).any()
        ):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("its corpus.json cannot be read") from None
    file, size = folder / "tokens.bin", np.dtype(kind).itemsize
    if file.stat().st_size != total * size:
        raise ValueError(f"it holds {file.stat().st_size // size:,} of {total:,} tokens")
    tokens = np.memmap(file, kind, "r") if total else np.zeros(0, kind)
    if _fingerprint(np.split(tokens, starts[1:])) != fingerprint:
        raise ValueError("its fingerprint differs from the recorded one")
    return Corpus(tokens=tokens, starts=starts.astype(np.int64), fingerprint=fingerprint)


def _fingerprint(documents: Iterable[np.ndarray]) -> str:
    """A hash of the tokens and of where each document ends."""
    digest = hashlib.sha256()
    for ids in documents:
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(ids.data)
    return digest.hexdigest()[:16]


def _tokenise(files: list[Path], tokenizer: Tokenizer, folder: Path, kind: type) -> None:
    """Write the stream into a folder that appears when it is whole and on the disk."""
    begun, starts = folder.with_name(f".{folder.name}.tmp"), [0]

    def written(out: BinaryIO) -> Iterator[np.ndarray]:
        for ids in _documents(files, tokenizer):
            data = ids.astype(kind)
            starts.append(starts[-1] + len(ids))
            out.write(data.data)
            yield data

    try:
        begun.mkdir(parents=True, exist_ok=True)
        with (begun / "tokens.bin").open("wb") as out:
            fingerprint = _fingerprint(written(out))
        total = starts.pop()
        about = {"starts": starts, "tokens": total, "fingerprint": fingerprint}
        write_text(begun / "corpus.json", json.dumps(about))
        flush(begun / "tokens.bin")
        flush(begun)
        shutil.rmtree(folder, ignore_errors=True)
        begun.rename(folder)
        flush(folder.parent)
    except OSError as error:
        raise ShardwiseError(
            f"cannot write the tokens of the data to '{folder}': {error.strerror}; free space or "
            "give another --out"
        ) from None


def _documents(files: list[Path], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    for file in files:
        ids = tokenizer.encode(file.read_bytes())
        yield ids if tokenizer.end is None else np.append(ids.astype(np.uint32), tokenizer.end)


def _await(folder: Path, kind: type) -> Corpus:
    """The stream, when another process has written it."""
    until = time.monotonic() + _PATIENCE
    while True:
        with suppress(OSError, ValueError):
            return _kept(folder, kind)
        if time.monotonic() > until:
            raise ShardwiseError(
                f"process 0 has not written '{folder}' within {_PATIENCE:.0f} s; --out must be a "
                "folder that all processes share"
            )
        time.sleep(0.1)
