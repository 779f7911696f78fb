"""What a person asks of servers, and the requests that it means."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from shardwise.boundary import number, whole
from shardwise.boundary.options import option, required, several, switch
from shardwise.commands.base.inputs import FAMILY, HardwareWords, Words, check_choice, parse_pins
from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Slice, Spelling
from shardwise.models import load_model
from shardwise.models.zoo import with_family
from shardwise.planner.serve.choices import candidate_slices, parts_of
from shardwise.planner.serve.request import POOLS, ServeRequest
from shardwise.planner.simulate.demand import Demand, demand_of
from shardwise.planner.simulate.metrics import Objectives
from shardwise.planner.simulate.traces import read_trace
from shardwise.plans.batch_words import parse_length
from shardwise.plans.engine_memory import engine_memory
from shardwise.plans.serve import CHECKPOINT, TTFT_TARGET, ServeDtypes, ServeScheduling
from shardwise.plans.servers import JAX, VLLM, ServingSoftware, default_compute, serving_software
from shardwise.roofline.engines import load_engine
from shardwise.scheduling import Speculation
from shardwise.units import parse_seconds

MOST_LENGTH = 2**24
"""Tokens of a prompt or answer: above the longest context that a known config states, Llama 4
Scout's 10,485,760 (ours)."""

_MOST_BATCH, _MOST_CHUNK = 1_000_000, 100_000_000
MOST_GUESSES = 8
"""Guesses of a step that are looked at where one rate is given for all (ours)."""

_CHUNKS = (1024, 4096, 16384)
"""Most tokens of a step that are tried."""


_TIGHT = 0.95
"""Share of the memory that is tried where nothing keeps the targets with less: what people set for
models that nearly fill their cards (vllm-project/vllm#27508)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWords(HardwareWords):
    """What is to be served, on what, and how well.

    95 % of the requests keep the targets `ttft`, `tpot` and `e2e`. Without a `rate` it is as many
    as one server holds, or all servers of a slice. Lengths are drawn from a `trace` in place of
    `input` and `output`, and its mean rate is `rate` unless that is given. `software` is "vllm",
    "sglang", "trtllm", "jax" or "any" of those that were measured; `pools` "any" is one or two.
    None leaves a choice open. `release` is the version of the engine whose memory is counted.
    """

    model: str | Path = field(
        kw_only=False, metadata=required("Zoo name, config.json, or a folder with one.")
    )
    on: str = field(
        kw_only=False,
        metadata=required("A chip (h100), several (h100,b200,v5p), or a slice (h100:8)."),
    )
    decode_on: str | None = option(
        "Chips of the servers that decode, if those of --on prefill only.",
        group="What is planned",
        meaning="chips or a slice of the servers that answer, where prompts have others",
    )
    as_: str | None = option(FAMILY, before="on")
    input: float | str | None = option(
        "Tokens of the prompt, such as 8192.", group="The load", meaning="tokens of a prompt"
    )
    output: float | str | None = option(
        "Tokens of the answer, such as 512.", group="The load", meaning="tokens of an answer"
    )
    trace: Path | str | None = option(
        "File of requests, for their lengths and rate.",
        kind="file",
        group="The load",
        meaning="a file of requests, with their times and lengths",
    )
    prefix: int | str | None = option(
        "Tokens at the start of every prompt that are the same, and cached. [default: 0]",
        group="The load",
        meaning="tokens that all prompts begin with, and that a cache of prefixes keeps",
    )
    rate: float | str | None = option(
        "Requests per second, with random arrivals. [default: the most that hold]",
        group="The load",
        meaning="requests per second",
    )
    ttft: float | str | None = option(
        "Longest time to the first token, such as 1s. [default: 2s]", group="Targets"
    )
    tpot: float | str | None = option(
        "Longest time per output token, such as 30ms.", group="Targets"
    )
    e2e: float | str | None = option(
        "Longest time from arrival to the last token, such as 30s.", group="Targets"
    )
    interactivity: float | str | None = option(
        "Fewest tokens per second of each user: answer tokens over the time of the whole request.",
        group="Targets",
        meaning="fewest tokens of an answer per second from the arrival to its last",
    )
    software: str | None = option(
        "The software that serves; jax is our own (shardwise serve). [default: vllm]",
        flag="--for",
        metavar="vllm|sglang|trtllm|jax|any",
    )
    pools: str = option(
        "Two pools: prefill has servers of its own.",
        default="one",
        show_default=True,
        metavar="one|two|any",
        group="Choices of the plan",
    )
    max_chips: int | str | None = option("Most chips, over all servers.", group="Targets")
    spare: int | str | None = option(
        "Servers that may fail while the others hold --rate. [default: 0]",
        group="Targets",
        meaning="servers that may be lost while the others hold the rate",
    )
    weights: str | None = option(
        "Dtype of the weights. [default: the checkpoint's]", group="Choices of the plan"
    )
    kv: str | None = option("Dtype of the KV cache. [default: bf16]", group="Choices of the plan")
    batch: int | str | None = option("Most sequences in flight on a server.")
    acceptance: str | float | None = option(
        "Acceptance of a guessed token after an accepted one (0.7), or the share of steps that "
        "accept each position (0.8,0.6,0.4). The search picks the cheapest number of guesses.",
        group="Choices of the plan",
        metavar="SHARE[,...]",
        meaning="how often guessed tokens hold, by their position or all",
    )
    draft_cost: float | str | None = option(
        "Time of one guess as a share of a decode step. [default: 0, as for n-grams]",
        group="Choices of the plan",
        meaning="time of one guess, as a share of a decode step",
    )
    prefill_chunk: float | str | None = option(
        "Most tokens of a step.",
        group="Choices of the plan",
        meaning="most prompt tokens of a step",
    )
    pins: Words = several(
        "Fix a mesh degree; may be repeated.", flag="--pin", metavar="AXIS=DEGREE"
    )
    memory_share: float | str | None = option(
        "Share of the memory that a server may take, as its engine defines it. [default: 0.9]",
        group="A server",
        meaning="share of the memory that a server takes, as its engine means it",
    )
    release: str | None = option(
        "Release of the engine, for its memory, such as 0.11. [default: the newest known]",
        group="A server",
        meaning="release of the engine whose memory is counted",
    )
    eager: bool = switch(
        "The engine captures no graphs of its steps.",
        group="A server",
        meaning="an engine that captures no graphs of its steps",
    )

    def places(self) -> list[str]:
        """The slices and chips of `on`, one or several."""
        names = [name.strip() for name in self.on.split(",")]
        if self.decode_on is not None and (len(names) > 1 or "," in self.decode_on):
            raise BadRequest("--decode-on and --on name one chip or slice each for two pools")
        if len(set(names)) < len(names) or not all(names):
            raise BadRequest(f"--on {self.on} names a chip twice or none; give each once: h100,v5p")
        return names

    def demand(self) -> Demand:
        """The lengths of the requests."""
        if self.trace is None:
            prompt = _count(self.input, "--input", MOST_LENGTH)
            return Demand(
                prompts=(prompt,),
                outputs=(_count(self.output, "--output", MOST_LENGTH),),
                prefix=prefix_of(self.prefix, prompt),
            )
        for name in ("input", "output", "prefix"):
            if getattr(self, name) is not None:
                raise BadRequest(f"--{name} takes no effect with --trace, which says it")
        return traced(Path(self.trace))[0]

    def goal(self) -> Objectives:
        """The targets."""
        given = {name: getattr(self, name) for name in ("ttft", "tpot", "e2e")}
        named = {
            {"e2e": "e2el"}.get(name, name): parse_seconds(words, f"--{name}")
            for name, words in given.items()
            if words is not None
        }
        return Objectives(**{"ttft": TTFT_TARGET, **named, **paced(self.interactivity)})

    def requests(self, place: str, demand: Demand) -> list[ServeRequest]:
        """The words as values on one of the places, a request for each software that may serve.
        Raises BadRequest for a word that has none or takes no effect."""
        check_choice(self.pools, "--pools", POOLS)
        model = with_family(self.model, self.as_)
        cfg = load_model(model)
        most = inf if self.max_chips is None else _count(self.max_chips, "--max-chips")
        pieces, chips = self._pieces(place)
        prefill, prefill_chips = (), inf
        if self.decode_on is not None:
            prefill, prefill_chips = pieces, chips
            pieces, chips = self._pieces(self.decode_on)
            _check_pools(prefill[0].chip, pieces[0].chip)
        most = min(most, chips + (prefill_chips if prefill else 0))
        places = tuple(dict.fromkeys(str(some[0]) for some in (pieces, prefill) if some))
        rows = self._storing(_for_chip(self.software or VLLM.name, pieces[0].chip))
        return [
            ServeRequest(
                cfg=cfg,
                model=str(model),
                pieces=pieces,
                input_length=max(1, round(demand.prompt)),
                output_length=max(1, round(demand.output)),
                dtypes=(self._dtypes(pieces[0].chip),),
                chunks=self._chunks(),
                pins=parse_pins(self.pins),
                software=row,
                engine=load_engine(row.engine_on(pieces[0].chip)),
                constants=self.hardware.constants,
                goal=self.goal(),
                pools="two" if prefill else self.pools,  # type: ignore[arg-type]
                max_chips=most,
                fill=chips < inf,
                prefill_pieces=prefill,
                prefill_chips=prefill_chips,
                decode_chips=chips if prefill else inf,
                batch=self._batch(),
                rate=self._rate(),
                spare=self._spare(),
                prefix=demand.prefix,
                chips=self.hardware.kept_of(*places),
                shares=self._shares(rows, pieces[0].chip),
                release=self.release or "",
                graphs=not self.eager,
                speculation=guess,
            )
            for row in rows
            for guess in self._guesses()
        ]

    def _pieces(self, place: str) -> tuple[tuple[Slice, ...], float]:
        """The slices that a server may lie on, and the chips of all; infinite of a bare chip."""
        target = self.hardware.target(place)
        if isinstance(target, Spelling):
            return parts_of(target.slice), target.slice.chips
        return candidate_slices(target), inf

    def _guesses(self) -> list[Speculation | None]:
        """Depths of guessing to choose from, with how often guesses hold."""
        if self.acceptance is None:
            if self.draft_cost is not None:
                raise BadRequest(
                    "--draft-cost is the cost of guesses, and there are none; give --acceptance"
                )
            return [None]
        cost = number(self.draft_cost or 0, "--draft-cost", least=0, most=100)
        texts = str(self.acceptance).split(",")
        shares = tuple(number(text, "--acceptance", least=0, most=1) for text in texts)
        method, several = "draft" if cost else "ngram", len(shares) > 1
        depths = range(1, (len(shares) if several else MOST_GUESSES) + 1)
        made = (
            Speculation(
                method=method,
                tokens=depth,
                cost=cost,
                acceptance=0.0 if several else shares[0],
                positions=shares if several else (),
            )
            for depth in depths
        )
        return [None, *made]

    def _spare(self) -> int:
        """Servers that may be lost, of a rate that was given."""
        spare = whole(self.spare or 0, "--spare", least=0, most=1_000)
        if spare and not self._rate():
            raise BadRequest(
                f"--spare is {spare} and there is no rate, so servers take all that they hold; "
                "give with --rate the requests per second that the others must hold"
            )
        return spare

    def _shares(self, rows: Sequence[ServingSoftware], chip: Chip) -> tuple[float, ...]:
        """The shares of the memory to try. Raises BadRequest where more is said of the engine's
        memory than its software counts by."""
        counted = any(engine_memory(row.engine_on(chip), chip) for row in rows)
        for flag, given in (("--release", self.release), ("--eager", self.eager)):
            if given and not counted:
                raise BadRequest(
                    f"{flag} takes no effect: for {rows[0].title} on {chip.id} memory does not "
                    "depend on a release or on graphs; leave it out, or plan --for vllm on a GPU"
                )
        if self.memory_share is not None:
            return (number(self.memory_share, "--memory-share", least=0.01, most=1),)
        usual = ServeScheduling().memory_share
        return (usual, _TIGHT) if counted else (usual,)

    @property
    def _weights(self) -> str:
        """The dtype asked for, or the checkpoint's."""
        return self.weights or CHECKPOINT

    @property
    def _kv(self) -> str:
        return self.kv or "bf16"

    def _storing(self, rows: Sequence[ServingSoftware]) -> list[ServingSoftware]:
        """Those of the rows that store the dtypes asked for. Raises BadRequest where none does."""
        asked = (("--weights", self._weights, "weights"), ("--kv", self._kv, "caches"))
        for flag, name, column in asked:
            able = [row for row in rows if name in getattr(row, column)]
            if not able:
                stored = "; ".join(
                    f"{r.title} stores {', '.join(getattr(r, column))}" for r in rows
                )
                other = ", or plan --for jax" if name in getattr(JAX, column) else ""
                raise BadRequest(f"{flag} {name}: {stored}; choose one of those{other}")
            rows = able
        return list(rows)

    def _dtypes(self, chip: Chip) -> ServeDtypes:
        """The dtypes that were asked for; the checkpoint's and bf16 where none were."""
        compute = default_compute(chip)
        return ServeDtypes(weights=self._weights, kv=self._kv, compute=compute, matmuls="stored")

    def _chunks(self) -> tuple[int, ...]:
        if self.prefill_chunk is None:
            return _CHUNKS
        return (_count(self.prefill_chunk, "--prefill-chunk", _MOST_CHUNK),)

    def _batch(self) -> int:
        """The sequences that were asked for, "24" or "24seq"; 0 where none were."""
        if self.batch is None:
            return 0
        text = str(self.batch)
        return _count(text.removesuffix("seq") or text, "--batch", _MOST_BATCH)

    def _rate(self) -> float:
        """Requests per second; 0 where none is given."""
        if self.rate is not None:
            return number(self.rate, "--rate", least=1e-6, most=1e6, suffix=True)
        return 0.0 if self.trace is None else traced(Path(self.trace))[1]


def paced(interactivity: float | str | None) -> dict[str, float]:
    """The objective of so many tokens per second, as seconds for each token; none without."""
    if interactivity is None:
        return {}
    return {"pace": 1 / number(interactivity, "--interactivity", least=1e-6, most=1e6)}


def prefix_of(words: int | str | None, prompt: int) -> int:
    """The tokens of a prompt that all begin with; BadRequest where they are all of it."""
    prefix = 0 if words is None else _count(words, "--prefix", MOST_LENGTH)
    if prefix >= prompt:
        raise BadRequest(
            f"--prefix is {prefix:,} and prompts have {prompt:,} tokens; a prefix is a part of "
            "the prompt, so give a longer --input or a shorter --prefix"
        )
    return prefix


def traced(path: Path) -> tuple[Demand, float]:
    """The lengths of a trace's requests, and how many come per second."""
    found = read_trace(path, 1)
    span = found[-1].arrival - found[0].arrival
    if not span:
        raise BadRequest(
            f"all requests of '{path}' arrive at once; give --input, --output and --rate"
        )
    return demand_of(found), (len(found) - 1) / span


def _check_pools(prefill: Chip, decode: Chip) -> None:
    """Raise BadRequest where caches do not go from one chip to the other."""
    for chip in (prefill, decode):
        if chip.data_centre is None:
            raise BadRequest(
                f"--decode-on: {chip.id} has no data-centre network in the catalogue, so a cache "
                "cannot be handed over; use a chip that has one, or give its rate with --hw FILE"
            )
    if prefill.vendor != decode.vendor:
        raise BadRequest(
            f"--decode-on: {prefill.id} and {decode.id} come from {prefill.vendor} and "
            f"{decode.vendor}; servers hand caches over only between chips of one vendor: name two"
        )


def _for_chip(name: str, chip: Chip) -> list[ServingSoftware]:
    found = serving_software(name)
    rows = [row for row in found if row.runs_on(chip)]
    if not rows:
        raise BadRequest(
            f"{found[0].title} does not run on {chip.id}, only on chips of "
            f"{', '.join(found[0].vendors)}; plan --for {VLLM.name}, or on one of those"
        )
    return rows


def _count(words: float | str | None, flag: str, most: float = inf) -> int:
    """A whole number that has to be given."""
    if words is None or words == "":
        raise BadRequest(f"Missing option '{flag}'.")
    value = parse_length(words, flag)
    if value > most:
        raise BadRequest(f"{flag} is {value:,}; at most {most:,} makes sense")
    return value
