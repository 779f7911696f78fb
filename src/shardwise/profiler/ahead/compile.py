"""Compile a program for a slice that is not here: in a child, limited, and once.

`compile_ahead` sends a builder's name and its plain arguments to the child, which lowers and
compiles for a topology, and keeps by content what comes back, a `CompiledProgram`.
"""

import importlib.util
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest, MissingPart
from shardwise.hardware.names import compiled
from shardwise.profiler.ahead.buffers import Buffer
from shardwise.profiler.ahead.cache import CompileCache, default_root, key_of, read_entry
from shardwise.profiler.ahead.partition import partitioned
from shardwise.profiler.ahead.sources import source_hash
from shardwise.profiler.ahead.target import CompileTarget
from shardwise.profiler.child import Watch, need_libtpu, run_function
from shardwise.work import tally

SECONDS = 900.0
MEMORY_BYTES = 12 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of a compile: seconds, bytes of memory, and where it is kept (None for nowhere). `stages` is
    a folder for KEY.json.gz with the texts of all its stages (`profiler/stages`): the program is
    then compiled anew. With `partition` it is not compiled but partitioned (`partition.py`), and
    nothing is kept."""

    seconds: float = SECONDS
    memory_bytes: int = MEMORY_BYTES
    cache: CompileCache | None = field(default_factory=lambda: CompileCache(root=default_root()))
    stages: Path | None = None
    partition: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """What the compiler made of a program.

    `hlo` is the scheduled module of one device, with cycle estimates on TPUs. `fits` says whether
    `needed_bytes` of HBM are within `capacity_bytes`, those of one device; the `refusal` of a
    program that does not fit is the compiler's, and `memory` is then empty, but `buffers`, what it
    had assigned, are still there. `memory` has bytes per device: peak, arguments, outputs, aliased,
    temporaries, code, host. `flops_once` is XLA's count, in which a loop counts once. `seconds`
    are of lowering, compile, the whole process and its CPUs when it was compiled; `cached` says
    that it now came from the cache. `occupancy` is HBM in use at each change, by instruction
    (`occupancy.py`), `alive` the largest temporaries at its peak; both empty where the compiler
    does not say. `notes` are the builder's, of how the program computes. Of one that is only
    `partitioned`, `hlo` is not scheduled, and what fits is not known.
    """

    key: str
    slice: str
    platform: str
    devices: int
    mesh: Mapping[str, int]
    options: Mapping[str, Any]
    versions: Mapping[str, str]
    seconds: Mapping[str, float]
    process_peak_bytes: int
    fits: bool
    refusal: str
    needed_bytes: int
    capacity_bytes: float
    memory: Mapping[str, int]
    buffers: tuple[Buffer, ...]
    flops_once: float | None
    cached: bool
    hlo: str = field(repr=False)
    occupancy: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    alive: tuple[Buffer, ...] = ()
    partitioned: bool = False

    def arguments_by_name(self) -> dict[str, float]:
        """Bytes of the arguments by the first words of their names: `state['params']` and so on."""
        given = (buffer for buffer in self.buffers if buffer.kind == "argument")
        return tally(("".join(b.op.partition("]")[:2]), b.bytes) for b in given)


def compile_ahead(
    target: CompileTarget,
    builder: str,
    arguments: Mapping[str, Any],
    *,
    settled: bool = False,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    watch: Watch | None = None,
) -> CompiledProgram:
    """Compile `builder(devices, **arguments)` for a target, or take it from the cache.

    `builder` is "module:function" and gives a value with `function`, `arguments` and `mesh`;
    `arguments` are plain values; `settled` says that the program follows from them and from the
    sources of `source_hash` alone, so that it need not be lowered to be found again; `options` are
    compiler options by XLA's names. `watch` hears of the child's progress (`child.Watch`).
    Raises MissingPart without the compiler, BadRequest for what it does not take and ShardwiseError
    where the process fails, crashes or passes a limit.
    """
    limits = limits or Limits()
    if limits.partition:
        bounds = {"seconds": limits.seconds, "memory_bytes": limits.memory_bytes}
        found = partitioned(target, builder, arguments, **bounds, watch=watch)
        return compiled_of("", *found, cached=False)
    need_compiler(target)
    cache, options = limits.cache, dict(options or {})
    asked = None if limits.stages else cache  # what is kept has no stages
    sent = json.loads(json.dumps(asdict(target)))
    request = key_of(sent, builder, dict(arguments), options, source_hash(builder))
    known = asked.follow(request) if asked is not None and settled else None
    if asked is not None and known and (held := _held(asked, known)):
        return held
    call = {"target": sent, "builder": builder, "arguments": dict(arguments), "options": options}
    key, held, found = _in_a_child(target, call, limits, asked, watch)
    if held is None and found is None:  # it was there, and has gone since
        key, held, found = _in_a_child(target, call, limits, None, watch)
    if cache is not None:
        if found is not None:
            cache.store(key, *found)
        if settled:
            cache.remember(request, key)
    if held is not None:
        return held
    assert found is not None
    return compiled_of(key, *found, cached=False)


def _in_a_child(
    target: CompileTarget,
    call: Mapping[str, Any],
    limits: Limits,
    cache: CompileCache | None,
    watch: Watch | None,
) -> tuple[str, CompiledProgram | None, tuple[dict[str, Any], str] | None]:
    """The key of what a child lowered, and what the cache has of it or what the child compiled."""
    with tempfile.TemporaryDirectory(prefix="shardwise-", ignore_cleanup_errors=True) as folder:
        answer = run_function(
            "shardwise.profiler.ahead.job:compile_job",
            {
                **call,
                "folder": folder,
                "cache": None if cache is None else str(cache.root),
                "stages": None if limits.stages is None else str(limits.stages),
            },
            devices=1,
            seconds=limits.seconds,
            memory_bytes=limits.memory_bytes,
            raised_by=("--timeout", "--memory"),
            environment=environment(target),
            folder=Path(folder),
            watch=watch,
            what=f"the compile for '{target.slice}'",
        )
        key = answer["key"]
        if cache is not None and answer["hit"]:
            return key, _held(cache, key), None
        return key, None, read_entry(Path(folder))


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("slice", "platform", "refusal"), str),
    **dict.fromkeys(("devices", "process_peak_bytes", "needed_bytes"), int),
    **dict.fromkeys(("mesh", "options", "versions", "seconds", "memory"), dict),
    "fits": bool,
    "buffers": list,
    "capacity_bytes": (int, float),
}
"""What a record has, by kind of value."""


def _held(cache: CompileCache, key: str) -> CompiledProgram | None:
    """A program of the cache; one that is none, however it came there, is dropped."""
    found = cache.load(key)
    if found is None:
        return None
    try:
        return compiled_of(key, *found, cached=True)
    except (KeyError, TypeError, ValueError):
        cache.drop(key)
        return None


def compiled_of(key: str, record: Mapping[str, Any], hlo: str, *, cached: bool) -> CompiledProgram:
    """A cache entry as a value; KeyError, TypeError or ValueError where the record is none."""
    for name, kind in _KINDS.items():
        if not isinstance(record[name], kind):
            raise TypeError(f"{name} of a compiled program is {record[name]!r}")
    buffers = tuple(Buffer(**b) for b in record["buffers"])
    steps = tuple((name, size) for name, size in record.get("occupancy", ()))
    notes = tuple(map(str, record.get("notes", ())))
    alive = tuple(Buffer(**b) for b in record.get("alive", ()))
    read = {**record, "buffers": buffers, "occupancy": steps, "notes": notes, "alive": alive}
    return CompiledProgram(key=key, cached=cached, hlo=hlo, **read)


def need_compiler(target: CompileTarget) -> None:
    """Raise MissingPart, with the install command, where the target's compiler is not there, and
    BadRequest where there is none."""
    if target.platform == "cpu":
        raise BadRequest(
            f"'{target.slice}' cannot be compiled for: no compiler that runs without the chip "
            f"knows it; those known are {', '.join(compiled())}; `explain --quick` asks XLA's "
            "partitioner alone, and `profile` measures on the chip"
        )
    if target.platform == "tpu":
        need_libtpu()
        return
    for name, what in (("jax_cuda12_plugin", "XLA's CUDA plugin"), ("nvidia.cudnn", "cuDNN")):
        try:
            found = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            remedy = "install it with `pip install '.[gpu-compile]'`"
            raise MissingPart(
                f"compiling for '{target.slice}' needs {what}, which is missing; {remedy}"
            )


def environment(target: CompileTarget) -> dict[str, str]:
    """What keeps a compiler from looking for devices, or for the cloud that they are in."""
    if target.platform == "cuda":
        return {"XLA_FLAGS": "--xla_gpu_autotune_level=0"}
    return {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "none",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # no device is opened, so no lock is needed
    }
