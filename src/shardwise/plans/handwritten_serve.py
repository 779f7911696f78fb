"""A serving plan as a person writes it: model, slice, mesh and load; the rest is worked out.

    kind: serve
    model: llama-3.1-8b
    slice: h100:2
    mesh: {tensor: 2}
    input: 1024
    output: 256
    rate: 10
    tpot: 30ms

`input` and `output` (or `input_length` and `output_length`, as the whole plan has them) are the
tokens of a request, and say that the plan serves where no `kind` does; `rate` (requests per
second), `ttft`, `tpot`, `e2e`, `interactivity` (tokens per second of a request), `trace` (a file
that lengths are drawn from) and `spare` (servers that may be lost) say the load and its targets,
and may be left out. Every other key of a plan may stand there too; what does not is the plan's
default, with vLLM's own number of sequences at once.
Nothing is searched: `plan serve` does.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from shardwise.boundary import number
from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.hardware.boxes import box_of
from shardwise.models import load_model
from shardwise.plans.batch_words import parse_length
from shardwise.plans.handwritten import mesh_of
from shardwise.plans.identity import model_hash
from shardwise.plans.serve import SERVE_AXES, TTFT_TARGET
from shardwise.plans.servers import VLLM, default_compute
from shardwise.units import parse_seconds

NEEDED = ("model", "slice", "mesh", "input", "output")
_LENGTHS = {"input_length": "input", "output_length": "output"}
_LOAD = ("rate", "ttft", "tpot", "e2e", "trace", "spare", "interactivity")
_OF_SERVERS = ("rate", "ttft", "tpot")
"""Words that no training plan has: a file with one serves, where it does not say its kind."""
WORD_OF = {**_LENGTHS, **{f"workload.{name}": name for name in _LOAD}}
"""The words of a file by the keys of the plan."""

COMPUTED = ("model_hash", "box")
"""Keys that are worked out where the file does not have them."""

BATCH = 256
"""Sequences at once where the file does not say: vLLM's own `--max-num-seqs`."""


def is_handwritten(data: Mapping[str, Any]) -> bool:
    """Whether the file of a serving plan leaves to us what a search would have written."""
    own = any(word in data for word in (*_LENGTHS, *_LENGTHS.values(), *_OF_SERVERS))
    serves = data.get("kind") == "serve" or ("kind" not in data and own)
    return serves and (any(w in data for w in WORD_OF.values()) or not set(COMPUTED) <= set(data))


def worked_out(
    data: Mapping[str, Any], origin: str, read: Callable[[str], Slice]
) -> dict[str, Any]:
    """The values of a whole plan, whose slice `read` reads; BadRequest names all keys that are
    missing."""
    lengths = {key: data.get(word, data.get(key)) for key, word in _LENGTHS.items()}
    said = {**data, **{_LENGTHS[key]: value for key, value in lengths.items() if value is not None}}
    missing = [name for name in NEEDED if name not in said]
    if missing:
        raise BadRequest(
            f"'{origin}' lacks {', '.join(missing)}; a serving plan written by hand needs "
            f"{', '.join(NEEDED)}, and may say rate, ttft, tpot and e2e"
        )
    mesh, piece = mesh_of(data["mesh"], origin, SERVE_AXES), read(str(data["slice"]))
    dtypes = {"compute": default_compute(piece.chip), "matmuls": "stored"}
    computed: dict[str, Any] = {
        "kind": "serve",
        "model_hash": model_hash(load_model(str(data["model"]))),
        "mesh": mesh,
        "box": _box(piece, prod(mesh.values())),
        "batch": BATCH,
        "engine": VLLM.engine,
        "kv_sharding": VLLM.kv_shardings[0],
        **{key: parse_length(said[word], word) for key, word in _LENGTHS.items()},
        **_workload(data),
    }
    own = {k: v for k, v in data.items() if k not in (*WORD_OF.values(), "mesh", *_LENGTHS)}
    given = data.get("dtypes") or {}
    own["dtypes"] = {**dtypes, **given} if isinstance(given, Mapping) else given
    return computed | own


def _workload(data: Mapping[str, Any]) -> dict[str, Any]:
    """The load and its targets, where a rate says that there is one."""
    given = {name: data[name] for name in _LOAD if data.get(name) is not None}
    if "rate" not in given:
        if given:
            raise BadRequest(f"{', '.join(given)} of a load without a rate; give the key 'rate'")
        return {}
    times = {name: parse_seconds(str(given[name]), name) for name in given if name in _TIMES}
    rate = number(given["rate"], "rate", least=1e-6, most=1e6)
    load = {"rate": rate, "ttft": TTFT_TARGET, **times}
    return {"workload": load | {k: given[k] for k in _AS_GIVEN if k in given}}


_TIMES = ("ttft", "tpot", "e2e")
_AS_GIVEN = ("trace", "spare", "interactivity")


def _box(piece: Slice, devices: int) -> list[int]:
    """The part of the slice that so many devices take."""
    chips = devices / piece.chip.jax_devices_per_chip / piece.count
    box = box_of(piece, int(chips)) if chips == int(chips) else None
    if box is None:
        each = piece.chips * piece.chip.jax_devices_per_chip
        raise BadRequest(
            f"a mesh of {devices:,} devices does not fit {piece}, which has {each:,}; choose "
            f"degrees that multiply to that number, or a slice of {devices:,} devices"
        )
    return list(box)
