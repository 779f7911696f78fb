"""Serve a checkpoint: its text, and an engine that is ready to step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from shardwise.boundary import Command
from shardwise.boundary.options import option, place, several
from shardwise.commands.base.inputs import Hardware, Words, check_choice, whole_number
from shardwise.commands.pricing.plans import load_plan
from shardwise.commands.run.served_model import ServedModel
from shardwise.errors import BadRequest, Caution, ShardwiseError
from shardwise.models import load_model
from shardwise.planner.serve.cost import engine_cost
from shardwise.planner.serve.server import server_of
from shardwise.plans import ServePlan, TrainPlan, is_of
from shardwise.plans.serve import CHECKPOINT, ENGINE_CACHES, ENGINE_WEIGHTS
from shardwise.plans.train import mesh_text
from shardwise.roofline.engines import engine_names
from shardwise.runtime.engine.core import Engine, StepRecord
from shardwise.runtime.engine.embedding import Embedder
from shardwise.runtime.engine.generation import (
    Finish,
    FormError,
    Generation,
    Sampling,
    TokenLogprobs,
)
from shardwise.runtime.engine.hosts import FollowingHost, LeadingHost, joined
from shardwise.runtime.engine.model_executor import ModelExecutor
from shardwise.runtime.engine.opening import EngineSettings, formats_of, keep_programs, open_engine
from shardwise.runtime.engine.thread import AnswerStream, Asked, Delta, EngineThread, StoppedError
from shardwise.runtime.processes import ProcessGroup, use_devices, use_memory, within_memory
from shardwise.runtime.text.answer_text import AnswerText
from shardwise.runtime.text.grammar import Constraint, Form
from shardwise.runtime.text.model_text import ModelText, read_model_text
from shardwise.runtime.text.reasoning import (
    NO_REASONING,
    REASONING_FORMATS,
    AfterThought,
    AnswerReader,
    ChannelReader,
    ThoughtReader,
    reasoning_format,
)
from shardwise.runtime.text.tool_calls import AnswerParts, CallPart, CallReader
from shardwise.runtime.text.tool_formats import NO_TOOLS, TOOL_FORMATS, ToolFormat, tool_format
from shardwise.scheduling.step import StepShape

__all__ = [
    "AfterThought",
    "AnswerParts",
    "AnswerReader",
    "AnswerStream",
    "AnswerText",
    "Asked",
    "CallPart",
    "CallReader",
    "ChannelReader",
    "Constraint",
    "Delta",
    "Embedder",
    "Engine",
    "EngineThread",
    "Finish",
    "Form",
    "FormError",
    "Generation",
    "ModelText",
    "Sampling",
    "ServeModelRequest",
    "ServedModel",
    "StepRecord",
    "StepShape",
    "StoppedError",
    "ThoughtReader",
    "TokenLogprobs",
    "ToolFormat",
    "keep_programs",
    "open_replica",
    "read_model_text",
]


WARMINGS = ("lazy", "all")
PLAN_ENDINGS = (".yaml", ".yml", ".json")
SEQUENCES, CHUNK = 32, 512
"""At once and of a step, where neither a plan nor a person says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeModelRequest:
    """What to serve, and how many requests at once; None takes the value from the plan, the model
    or the device. `path` is a checkpoint's folder, or a plan's file; `model` is its checkpoint
    if the plan only names a model. `hw_files` describe the chip that predicts a plan's steps."""

    path: str = field(metadata=place("MODEL_DIR|PLAN", kind="path"))
    model: str | None = option("The checkpoint, if a plan only names a model.", metavar="DIR")
    served_model: str | None = option(
        "Model name for clients. Default: the folder's name.", metavar="NAME"
    )
    sequences: int | None = option(
        "Default the plan's, else 32.",
        kind="whole",
        least=1,
        most=4096,
        group="A server",
        meaning="sequences that run at once",
    )
    prefill_chunk: int | None = option("Default the plan's, else 512.", kind="whole", least=1)
    seq: int | None = option(
        "Most tokens of prompt and answer. Default: the model's context.", kind="whole", least=2
    )
    kv_tokens: int | None = option("Default: what fits on the device.", kind="whole", least=1)
    memory_share: float | None = option(
        "Share of a card's memory. Default: JAX's 0.75.",
        kind="number",
        above=0,
        most=1,
    )
    weights: str | None = option("Default by device.", metavar="|".join(ENGINE_WEIGHTS))
    kv: str | None = option("Default as computed in.", metavar="|".join(ENGINE_CACHES))
    guesses: int | None = option(
        "Guessed tokens per step. Default: as in the plan, else 0.",
        kind="whole",
        least=0,
        group="A server",
    )
    draft: str | None = option(
        "Checkpoint of the draft model. Default: n-grams.", metavar="DIR", group="A server"
    )
    lora_modules: tuple[str, ...] = several(
        "LoRA adapter to serve under its own name; may be repeated.",
        metavar="NAME=DIR",
        group="A server",
        meaning="a LoRA adapter (PEFT's folder) that clients ask for by its name",
    )
    tool_format: str | None = option(
        "Format of tool calls. Default: from the template.",
        metavar="NAME",
        group="A server",
        meaning="how a model writes calls of tools",
    )
    reasoning_parser: str | None = option(
        "Format of reasoning. Default: from the template.",
        metavar="NAME",
        group="A server",
        meaning="how a model marks what it thinks before it answers",
    )
    warm: str = option(
        default="lazy",
        show_default=True,
        values=WARMINGS,
        group="A server",
        meaning="which programs are compiled before the first request: all, or lazily none",
    )
    hw_files: Words = several("Hardware file for the chip of a plan.", flag="--hw", metavar="FILE")
    cpu_devices: int | None = option("N virtual CPU devices per process.", kind="whole", least=1)
    coordinator: str | None = option(
        "With several hosts: address where they meet.", metavar="HOST:PORT"
    )
    processes: int | None = option("How many hosts.", kind="whole", least=1)
    process: int | None = option(
        "Number of this host; host 0 answers requests.", kind="whole", least=0
    )

    def __post_init__(self) -> None:
        check_choice(self.warm, "--warm", WARMINGS)
        check_choice(self.tool_format, "--tool-format", (NO_TOOLS, *TOOL_FORMATS))
        check_choice(
            self.reasoning_parser, "--reasoning-parser", (NO_REASONING, *REASONING_FORMATS)
        )
        check_choice(self.weights, "--weights", ENGINE_WEIGHTS)
        check_choice(self.kv, "--kv", ENGINE_CACHES)
        if self.sequences is not None:
            whole_number(self.sequences, "--sequences", least=1, most=4096)

    @property
    def adapters(self) -> Mapping[str, Path]:
        """Folders by name. Raises BadRequest."""
        found: dict[str, Path] = {}
        for word in self.lora_modules:
            name, _, folder = word.partition("=")
            if not (name and folder):
                raise BadRequest(
                    f"--lora-modules {word} is no NAME=DIR; give a name and an adapter's folder"
                )
            if name in found:
                raise BadRequest(
                    f"--lora-modules gives '{name}' twice; each adapter has a name of its own"
                )
            found[name] = Path(folder)
        return found

    @property
    def plan(self) -> ServePlan | None:
        """The plan that it names."""
        if not self.path.endswith(PLAN_ENDINGS):
            if self.model is not None:
                raise BadRequest(
                    f"'{self.path}' is not a plan's file ({', '.join(PLAN_ENDINGS)}); --model "
                    "names the checkpoint to serve with a plan"
                )
            return None
        plan = load_plan(self.path, hardware=Hardware(files=self.hw_files))
        if isinstance(plan, TrainPlan):
            raise BadRequest(f"'{self.path}' is a training plan; give a serving plan")
        return plan

    def settings(self, plan: ServePlan | None) -> EngineSettings:
        """The same in the engine's words."""
        asked = (
            _planned(plan) if plan is not None else EngineSettings(batch=SEQUENCES, budget=CHUNK)
        )
        batch = self.sequences or asked.batch
        size, guesses = asked.scheduling.page_size, self.guesses
        if guesses is None:
            guesses = asked.scheduling.guesses
        return replace(
            asked,
            batch=batch,
            budget=max(self.prefill_chunk or asked.budget, batch + 1),
            draft=None if self.draft is None else Path(self.draft),
            adapters=tuple(self.adapters.values()),
            scheduling=replace(asked.scheduling, guesses=guesses, acceptance=0.0, guess_cost=0.0),
            most_tokens=self.seq,
            memory_share=self.memory_share,
            pages=None if self.kv_tokens is None else -(-self.kv_tokens // size),
            weights=self.weights or asked.weights,
            cache=self.kv or asked.cache,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest(ServeModelRequest, Command):
    """The same, and the address, the clients and the limits of the server."""

    COMMAND: ClassVar[str] = "serve"

    host: str = option(
        "Address to listen on.",
        default="127.0.0.1",
        show_default=True,
        before="sequences",
        group="A server",
    )
    port: int = option(
        default=8000,
        show_default=True,
        kind="whole",
        most=65535,
        before="sequences",
        group="A server",
        meaning="the port that a server listens on",
    )
    queue: int = option(
        default=512,
        show_default=True,
        kind="whole",
        least=1,
        group="A server",
        meaning="answers that wait or run at most; more are refused for now",
    )
    request_time: float = option(
        "Most of an answer.  [3600]",
        default=3600.0,
        kind="number",
        above=0,
        metavar="SECONDS",
        group="A server",
        meaning="most seconds of an answer",
    )
    drain_time: float = option(
        "Most seconds for answers after SIGTERM.  [600]",
        default=600.0,
        kind="number",
        least=0,
        metavar="SECONDS",
        group="A server",
        meaning="most seconds that accepted requests have at the end",
    )
    api_key: tuple[str, ...] = several(
        "Key that clients must give; may be repeated. Default: $SHARDWISE_API_KEY."
    )
    allowed_hosts: tuple[str, ...] = several(
        "Host name that clients use; may be repeated; '*': any.",
        flag="--allowed-host",
        metavar="NAME",
        group="A server",
    )
    log_level: str = option(
        default="info",
        show_default=True,
        values=("debug", "info", "warning", "error"),
        group="A server",
        meaning="how much is logged",
    )


def _planned(plan: ServePlan) -> EngineSettings:
    """A plan in the engine's words."""
    weights = plan.dtypes.weights
    return EngineSettings(
        batch=plan.batch,
        budget=plan.prefill_chunk,
        weights=None if weights == CHECKPOINT else weights,
        cache=plan.dtypes.kv,
        mesh=plan.mesh,
        kv_sharding=plan.kv_sharding,
        replicas=plan.replicas,
        prefill_replicas=plan.prefill_replicas,
        prefill_mesh=plan.prefill_plan.mesh,
        routing=plan.routing,
        scheduling=plan.scheduling,
    )


def open_replica(asked: ServeModelRequest, tell: Callable[[str], None]) -> ServedModel | None:
    """Load a checkpoint, as its plan says where there is one; `tell` hears what it is at. A host
    that is not the first follows that until it ends, and has nothing to serve: None. Raises
    BadRequest."""
    plan, hosts = asked.plan, None
    use_devices(asked.cpu_devices)
    if asked.memory_share is not None:
        use_memory(asked.memory_share)
    group = ProcessGroup(coordinator=asked.coordinator, count=asked.processes, index=asked.process)
    if group != ProcessGroup():
        hosts = joined(group)
    folder = Path(asked.path if plan is None else asked.model or plan.model)
    text = read_model_text(folder)
    if text.spelt_ends:
        named = f"{folder}: eos_token_id names ordinary text of the tokenizer, "
        named += f"{' and '.join(text.spelt_ends)}; an answer would end at that text. "
        tell(Caution(f"{named}Give the id of its special token"))
    if plan is not None:
        for warning in _check_plan(plan, folder, asked):
            tell(Caution(warning))
    tell(f"loading {folder}")
    if not isinstance(hosts, FollowingHost):
        text.jobs.start()
    settings = asked.settings(plan)
    with within_memory():
        engine = open_engine(folder, settings, text.end_ids, hosts)
    if isinstance(hosts, FollowingHost):
        (executor,) = (replica.executor for replica in engine.replicas)
        assert isinstance(executor, ModelExecutor)
        tell(f"host {asked.process} of {asked.processes} follows host 0")
        hosts.follow(executor)
        return None
    if asked.warm == "all":
        _warm(engine, tell)
    tools = tool_format(asked.tool_format, text.template)
    reasoning = reasoning_format(asked.reasoning_parser, text.template)
    formats: dict[str, Any] = {"tool_format": tools, "reasoning_parser": reasoning}
    if asked.adapters:
        formats |= {"adapters": [f"{name}={path}" for name, path in asked.adapters.items()]}
    name = asked.served_model or folder.resolve().name
    if name in asked.adapters:
        raise BadRequest(f"--lora-modules {name}=DIR has the model's own name; give another")
    return ServedModel(
        name=name,
        adapters=tuple(asked.adapters),
        text=text,
        engine=engine,
        tool_format=tools,
        reasoning=reasoning,
        embedder=cache(partial(_embedder, engine, folder)),
        predict=None if plan is None else _prediction(plan, folder, asked.hw_files, tell),
        serves={**_serves(settings, folder, engine), **formats},
        close=partial(_close, text, hosts),
    )


def _embedder(engine: Engine, folder: Path, variant: int) -> Embedder:
    prefilling = sum(replica.prefills for replica in engine.replicas)
    executor = engine.replicas[prefilling + variant].executor
    assert isinstance(executor, ModelExecutor)
    return executor.embedder(folder)


def _close(text: ModelText, hosts: LeadingHost | FollowingHost | None) -> None:
    text.jobs.stop()
    if isinstance(hosts, LeadingHost):
        hosts.close()


def _serves(settings: EngineSettings, folder: Path, engine: Engine) -> Mapping[str, object]:
    """How a checkpoint is served, what was chosen for it included."""
    formats, guesses = formats_of(settings, load_model(folder)), settings.scheduling.guesses
    found = {
        "checkpoint": str(folder),
        "mesh": mesh_text(settings.mesh),
        "kv_sharding": settings.kv_sharding,
        "replicas": settings.replicas,
        **formats._asdict(),
        "pages": engine.pages,
        "page_size": engine.config.page_size,
        "slots": settings.batch,
        "step_tokens": settings.budget,
        "longest": engine.most_tokens,
        "guesses": guesses,
        "programs": sum(replica.executor.most_programs for replica in engine.replicas),
    }
    if settings.prefill_replicas:
        prefill = mesh_text(settings.prefill_mesh)
        found |= {"prefill_replicas": settings.prefill_replicas, "prefill_mesh": prefill}
    return found


def _warm(engine: Engine, tell: Callable[[str], None]) -> None:
    executors = [replica.executor for replica in engine.replicas]
    models = [executor for executor in executors if isinstance(executor, ModelExecutor)]
    most = sum(executor.most_programs for executor in models)
    for i, _ in enumerate(chain.from_iterable(e.warm() for e in models), 1):
        tell(f"compiled step {i} of {most}")


def _check_plan(plan: ServePlan, folder: Path, asked: ServeModelRequest) -> list[str]:
    """What of a plan this engine does not do. Raises BadRequest for another model's checkpoint."""
    if plan.model_hash and not is_of(plan.model_hash, load_model(folder)):
        raise BadRequest(
            f"the plan is for {plan.model} and '{folder}' has another model's layers; give its own "
            "checkpoint with --model DIR"
        )
    _check_slices(plan, asked.hw_files)
    scheduling = plan.scheduling
    left_out = {
        f"the plan has the times of {plan.engine}": plan.engine in engine_names(),
        "this server does not swap sequences to the host": scheduling.swap,
        "this server keeps no prefixes on the host": scheduling.host_cache_share,
        "guesses are n-grams of the sequence, not from a model (--draft DIR)": (
            scheduling.guess_cost and asked.draft is None
        ),
    }
    return [f"{said}; JAX serves it here" for said, true in left_out.items() if true]


def _check_slices(plan: ServePlan, hw_files: Words) -> None:
    """Raise BadRequest for a mesh that is larger than its slice; a chip that is not known here
    says nothing of that."""
    hardware = Hardware(constants=plan.constants, files=hw_files).of_plan(plan)
    for own in (plan, plan.prefill_plan):
        if own.degree("stage") > 1:
            raise BadRequest(
                f"the plan's mesh {mesh_text(own.mesh)} has pipeline stages, and this server has "
                "none; plan with --for jax, or export the plan to its own server"
            )
        try:
            piece = hardware.slice(own.slice).slice
        except ShardwiseError:
            continue
        if own.devices > piece.devices:
            raise BadRequest(
                f"the plan's mesh {mesh_text(own.mesh)} has {own.devices} devices and its slice "
                f"{own.slice} {piece.devices}; plan for a larger slice, or change mesh and box"
            )


def _prediction(
    plan: ServePlan, folder: Path, hw_files: Words, tell: Callable[[str], None]
) -> Callable[[StepRecord], float] | None:
    """What the planner says of each step, on the plan's own chips; prefilling replicas come
    first. None where it cannot price the plan."""
    hardware = Hardware(constants=plan.constants, files=hw_files).of_plan(plan)
    cfg = load_model(folder)
    try:
        costs = [
            engine_cost(server_of(own, cfg, hardware.slice(own.slice).slice))
            for own in (plan.prefill_plan, plan)
        ]
    except ShardwiseError as error:
        tell(Caution(f"no times are predicted: {error}"))
        return None

    def predict(record: StepRecord) -> float:
        cost = costs[record.replica >= plan.prefill_replicas]
        return cost.seconds(record.shape) * record.steps

    return predict
