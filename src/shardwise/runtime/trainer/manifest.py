"""What a checkpoint says of itself: the one reader of its manifest.json, every value typed.

The manifest names the run, each array with its shape and dtype, and each file with its size and
checksum. Its values are checked here and nowhere else; whether the files hold what it says is
proved in `pieces.py`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from shardwise.boundary import read_json
from shardwise.boundary.typed import first_mistake
from shardwise.errors import BadRequest, shown

MANIFEST = "manifest.json"
FORMAT = 2
_MANIFEST_BYTES = 64 * 2**20
"""A file of 100,000 processes takes 100 bytes of it, an array of a model less."""
_STEP = re.compile(r"step-([0-9]{8,18})")

Size = Annotated[int, Field(ge=0, lt=2**53)]
Checksum = Annotated[int, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(max_length=1000)]


class _Typed(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class SavedArray(_Typed):
    """Shape and dtype (NumPy's name) of an array of the state."""

    shape: Annotated[list[Size], Field(max_length=32)]
    dtype: Text


class SavedFile(_Typed):
    """A file of pieces: its name, its bytes, and the CRC-32 of its header, which holds those of its
    pieces (format 1: of all of it)."""

    name: Text
    bytes: Size
    crc32: Checksum


class Manifest(_Typed):
    """`identity` says what the run is, `tree` what its state holds; `files` are those of all
    processes."""

    format: Literal[1, 2]
    step: Annotated[int, Field(ge=0, le=10**18)]
    identity: dict[Text, bool | int | float | Text | None]
    tree: dict[Text, SavedArray]
    files: list[SavedFile]

    @field_validator("files")
    @classmethod
    def _one_of_each_process(cls, files: list[SavedFile]) -> list[SavedFile]:
        names = [f.name for f in files]
        if names != [shard_file(i, len(files)) for i in range(len(files))] or not files:
            raise ValueError("must list one file per process, in order and by name")
        return files


def shard_file(process: int, processes: int) -> str:
    """The name of the file that a process writes.

    >>> shard_file(0, 2)
    'shards-00000-of-00002.safetensors'
    """
    return f"shards-{process:05}-of-{processes:05}.safetensors"


class NoCheckpoint(BadRequest):
    """A folder is not a checkpoint of the trainer; `damage` says why."""

    def __init__(self, folder: Path, damage: str) -> None:
        super().__init__(f"'{folder}' is not a checkpoint of this trainer: {damage}")
        self.damage = damage


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises BadRequest, naming the first value that is wrong."""
    try:
        said = read_json(folder / MANIFEST, "it", most=_MANIFEST_BYTES)
    except BadRequest:  # its words are for a document that a person writes
        raise NoCheckpoint(folder, f"its {MANIFEST} cannot be read") from None
    try:
        return Manifest.model_validate(said)
    except ValidationError as error:
        first = first_mistake(error.errors(), said)
    where = shown(first.place) if first.place else "the document"
    got = "missing" if first.missing else shown(first.value)
    raise NoCheckpoint(
        folder, f"its {MANIFEST} cannot be read ({where} is {got}; it must be {first.must_be})"
    )


def check_identity(
    folder: Path,
    wanted: Mapping[str, object],
    but: tuple[str, ...] = (),
    former: Mapping[str, object] = MappingProxyType({}),
) -> Manifest:
    """The manifest of a checkpoint of the run `wanted`. Raises BadRequest, naming the first
    difference, for one of another run; `but` names what is not known of it yet, `former` has what
    an earlier version wrote for the same run."""
    manifest = read_manifest(folder)
    found = manifest.identity
    for key in {**wanted, **found}:
        same = (wanted.get(key), former.get(key, wanted.get(key)))
        if found.get(key) not in same and key not in but:
            was, now = (_named(x.get(key)) for x in (found, wanted))
            raise BadRequest(
                f"the checkpoint '{folder}' was made with {_named(key)} {was}, and this run has "
                f"{now}; use the same value, or start a new run from weights: --init FOLDER --out "
                "ANOTHER"
            )
    return manifest


def _named(value: object) -> str:
    if value is None:
        return "nothing"
    text = shown(value, 200)
    return text[1:-1] if isinstance(value, str) else text


def steps_in(folder: Path) -> list[int]:
    """The steps that have a folder."""
    found = (_STEP.fullmatch(p.name) for p in folder.glob("step-*"))
    return sorted(int(name[1]) for name in found if name and step_folder(int(name[1])) == name[0])


def step_folder(step: int) -> str:
    """The name of a checkpoint's folder.

    >>> step_folder(20)
    'step-00000020'
    """
    return f"step-{step:08}"


def whole(folder: Path) -> bool:
    """Whether a checkpoint has its manifest and every file in full length."""
    return damage(folder) is None


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, as far as it shows without reading its files."""
    try:
        manifest = read_manifest(folder)
    except NoCheckpoint as error:
        return error.damage
    if folder.name != step_folder(manifest.step):
        return f"its {MANIFEST} belongs to step {manifest.step}"
    for about in manifest.files:
        try:
            size = (folder / about.name).stat().st_size
        except OSError as error:
            return f"'{about.name}': {error.strerror}"
        if size != about.bytes:
            return f"'{about.name}' has {size:,} of {about.bytes:,} bytes"
    return None
