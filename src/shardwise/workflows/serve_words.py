"""What a person asks of servers, and the request that it means."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Slice, Spelling, slices_of
from shardwise.models import ModelConfig, load_model, params_text, params_total, weight_bytes
from shardwise.models.zoo import with_family
from shardwise.planner.serve.request import ServeRequest, Utilisation
from shardwise.planner.simulate.metrics import Objectives
from shardwise.plans.batch_words import parse_length
from shardwise.plans.serve import CHECKPOINT, ServeDtypes
from shardwise.roofline.engines import Engine, load_engine
from shardwise.units import parse_count, parse_seconds
from shardwise.workflows.inputs import (
    HardwareWords,
    Words,
    check_choice,
    parse_pins,
    parse_share,
)

MOST_CHIPS = 512
"""A bare chip is searched up to slices of so many chips; larger replicas only copy the weights."""

MOST_LENGTH = 2**24
"""Tokens of a prompt or answer: above the longest context that a known config states, Llama 4
Scout's 10,485,760 (ours)."""

_MOST_BATCH, _MOST_CHUNK = 1_000_000, 100_000_000
_CHUNK = 8192
_CHUNKS = (1024, 4096, 16384)
"""Most tokens of a step: as a server is planned for, and those that a fleet chooses from."""

_WIDE = 1.5
"""Bytes per parameter above which 8-bit weights are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWords(HardwareWords):
    """What is to be served, on what, and how well.

    `model` is a zoo name, a config.json or a folder with one, which is read as the class or model
    type `as_` where its own is not known; `on` a slice, or a bare chip for the
    smallest of its slices; `input` and `output` are tokens of a request; `tpot`, `ttft` and `e2e`
    ("15ms", or seconds) are not to be exceeded; `pins` fixes mesh degrees ({"tensor": 8}); `engine`
    is the software that serves: "vllm", "sglang", "trtllm", "others", or "ideal", which adds
    nothing. None leaves a choice open.

    With `objective` "smallest" it is the first slice that meets the targets, with the mesh and
    batch of most tokens per second and chip: `batch` fixes the batch, `mfu` prefills at that share
    of the peak by 2 * `params` * tokens. With "cost" it is the cheapest fleet under a load, the
    share `percentile` of the requests within the targets: requests come at random, `rate` per
    second, or as many as the servers can take; dtypes and `prefill_chunk` are chosen too.
    """

    model: str | Path = field(kw_only=False)
    on: str = field(kw_only=False)
    as_: str | None = None
    input: float | str | None = None
    output: float | str | None = None
    tpot: float | str | None = None
    ttft: float | str | None = None
    e2e: float | str | None = None
    batch: int | str | None = None
    weights: str | None = None
    kv: str | None = None
    activations: str | None = None
    compute: str | None = None
    engine: str | None = None
    prefill_chunk: float | str | None = None
    pins: Words = ()
    objective: str = "smallest"
    rate: float | str | None = None
    percentile: float | str | None = None
    mfu: float | str | None = None
    params: float | str | None = None

    def request(self) -> ServeRequest:
        """The words as values. Raises BadRequest for a word that has none or takes no effect."""
        self.check()
        model = with_family(self.model, self.as_)
        cfg, target = load_model(model), self.hardware.target(self.on)
        pieces = (target.slice,) if isinstance(target, Spelling) else candidate_slices(target)
        shared = {
            "cfg": cfg,
            "model": str(model),
            "pieces": pieces,
            "input_length": _count(self.input, "--input", MOST_LENGTH),
            "output_length": _count(self.output, "--output", MOST_LENGTH),
            "pins": parse_pins(self.pins),
            "engine": self.load_engine(),
            "constants": self.hardware.constants,
            "goal": Objectives(
                **{
                    name: parse_seconds(words, f"--{flag}")
                    for name, flag in (("ttft", "ttft"), ("tpot", "tpot"), ("e2el", "e2e"))
                    if (words := getattr(self, flag)) is not None
                }
            ),
        }
        return self._cost(shared) if self.objective == "cost" else self._smallest(shared)

    def check(self) -> None:
        """Raise BadRequest for a choice that the objective does not have."""
        check_choice(self.objective, "--objective", ("smallest", "cost"))
        if self.objective == "cost":
            for name in ("batch", "mfu", "params"):
                if getattr(self, name) is not None:
                    raise BadRequest(
                        f"--{name} takes no effect with --objective cost; leave it out"
                    )
            if self.activations is not None:
                raise BadRequest(
                    "--activations takes no effect with --objective cost, where they are bf16"
                )
            return
        for name in ("rate", "e2e", "percentile"):
            if getattr(self, name) is not None:
                raise BadRequest(f"--{name} belongs to --objective cost; give that too")
        if self.params is not None and self.mfu is None:
            raise BadRequest("--params changes only the arithmetic of --mfu; give --mfu too")

    def load_engine(self) -> Engine:
        """The software that serves. Targets that an ideal one keeps by a hair are missed by any
        that runs, so a fleet is planned for a real one."""
        return load_engine(self.engine or ("others" if self.objective == "cost" else "ideal"))

    def _smallest(self, shared: Mapping[str, Any]) -> ServeRequest:
        cfg, chip = shared["cfg"], shared["pieces"][0].chip
        utilisation = None
        if self.mfu is not None:
            params = params_total(cfg) if self.params is None else self.params
            share = parse_share(self.mfu, "--mfu")
            utilisation = Utilisation(share=share, params=parse_count(params, "--params"))
        dtypes = ServeDtypes(
            weights=self.weights or CHECKPOINT,
            kv=self.kv or "bf16",
            activations=self.activations or "bf16",
            compute=self.compute or default_compute(chip),
        )
        chunk = _CHUNK if self.prefill_chunk is None else self.prefill_chunk
        return ServeRequest(
            dtypes=(dtypes,),
            chunks=(_count(chunk, "--prefill-chunk", _MOST_CHUNK),),
            batch=self._batch(),
            utilisation=utilisation,
            **shared,
        )

    def _batch(self) -> int:
        """The sequences that were asked for, "24" or "24seq"; 0 where none were."""
        if self.batch is None:
            return 0
        text = str(self.batch)
        return _count(text.removesuffix("seq") or text, "--batch", _MOST_BATCH)

    def _cost(self, shared: Mapping[str, Any]) -> ServeRequest:
        percentile = parse_share(self.percentile or 0.9, "--percentile")
        if not 0.5 <= percentile < 1:
            raise BadRequest(f"the percentile is {percentile:g}; give one from 50% to below 100%")
        chunks = _CHUNKS
        if self.prefill_chunk is not None:
            chunks = (_count(self.prefill_chunk, "--prefill-chunk"),)
        chip = shared["pieces"][0].chip
        return ServeRequest(
            dtypes=dtypes_for(shared["cfg"], chip, self.weights, self.kv, self.compute),
            chunks=chunks,
            objective="cost",
            rate=0.0 if self.rate is None else parse_count(self.rate, "--rate"),
            percentile=percentile,
            **shared,
        )


def _count(words: float | str | None, flag: str, most: float = inf) -> int:
    """A whole number that has to be given."""
    if words is None or words == "":
        raise BadRequest(f"Missing option '{flag}'.")
    value = parse_length(words, flag)
    if value > most:
        raise BadRequest(f"{flag} is {value:,}; at most {most:,} makes sense")
    return value


def candidate_slices(chip: Chip) -> tuple[Slice, ...]:
    """The slices of a chip that a server may take, smallest first; several domains where the chip
    has a data-centre network."""
    domains = MOST_CHIPS if chip.data_centre is not None else 1
    return tuple(p for p in slices_of(chip, domains=domains) if p.chips <= MOST_CHIPS)


def default_compute(chip: Chip) -> str:
    """bf16 where the chip has it, else the first dtype of its peaks."""
    return "bf16" if "bf16" in chip.peak_flops else next(iter(chip.peak_flops))


def dtypes_for(
    cfg: ModelConfig,
    chip: Chip,
    weights: str | None = None,
    kv: str | None = None,
    compute: str | None = None,
) -> tuple[ServeDtypes, ...]:
    """The dtypes that a fleet chooses from on a chip, where they are not given. 8-bit weights are
    offered where most parameters are stored in more; fp8 where the chip multiplies it, else int8.
    """
    small = "fp8" if "fp8" in chip.peak_flops else "int8"
    wide = weight_bytes(cfg) > _WIDE * params_text(cfg)
    offered = (weights,) if weights else (CHECKPOINT, small) if wide else (CHECKPOINT,)
    return tuple(
        ServeDtypes(weights=w, kv=k, compute=compute or default_compute(chip), matmuls="stored")
        for w in offered
        for k in ((kv,) if kv else ("bf16", small))
    )
