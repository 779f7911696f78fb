"""Serve a checkpoint: its text, and an engine that is ready to step."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardwise.runtime.engine.core import Engine, StepRecord
from shardwise.runtime.engine.generation import Finish, Generation, Sampling, TokenLogprobs
from shardwise.runtime.engine.model_executor import ModelExecutor
from shardwise.runtime.engine.opening import EngineSettings, keep_programs, open_engine
from shardwise.runtime.engine.thread import AnswerStream, Asked, Delta, EngineThread
from shardwise.runtime.text.answer_text import AnswerText
from shardwise.runtime.text.grammar import Constraint, Form
from shardwise.runtime.text.model_text import ModelText, read_model_text
from shardwise.scheduling.step import StepShape
from shardwise.workflows.inputs import check_choice, whole_number

__all__ = [
    "AnswerStream",
    "AnswerText",
    "Asked",
    "Constraint",
    "Delta",
    "Engine",
    "EngineThread",
    "Finish",
    "Form",
    "Generation",
    "ModelText",
    "Sampling",
    "ServeModelRequest",
    "ServedModel",
    "StepRecord",
    "StepShape",
    "TokenLogprobs",
    "keep_programs",
    "open_replica",
    "read_model_text",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that can be asked: its `name` to clients, its text, its engine. `predict` gives the
    seconds that a step should take, where the plan says so."""

    name: str
    text: ModelText
    engine: Engine
    predict: Callable[[StepShape], float] | None = None


WARMINGS = ("lazy", "all")
PAGE = 16
"""Tokens of a page of the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeModelRequest:
    """Which checkpoint is served, and how much at once; None leaves it to model and device."""

    model: str
    served_model: str | None = None
    sequences: int = 32
    prefill_chunk: int = 512
    seq: int | None = None
    kv_tokens: int | None = None
    weights: str | None = None
    kv: str | None = None
    warm: str = "lazy"

    def __post_init__(self) -> None:
        check_choice(self.warm, "--warm", WARMINGS)
        whole_number(self.sequences, "--sequences", least=1, most=4096)

    @property
    def settings(self) -> EngineSettings:
        """The same in the engine's words."""
        return EngineSettings(
            batch=self.sequences,
            budget=max(self.prefill_chunk, self.sequences + 1),
            most_tokens=self.seq,
            page_size=PAGE,
            pages=None if self.kv_tokens is None else -(-self.kv_tokens // PAGE),
            weights=self.weights,
            cache=self.kv,
        )


def open_replica(asked: ServeModelRequest, tell: Callable[[str], None]) -> ServedModel:
    """Load a checkpoint folder; `tell` hears what it is at. Raises BadRequest."""
    folder = Path(asked.model)
    text = read_model_text(folder)
    tell(f"loading {folder}")
    engine = open_engine(folder, asked.settings, text.end_ids)
    if asked.warm == "all" and isinstance(engine.executor, ModelExecutor):
        shapes = len(list(engine.executor.shapes()))
        for i, _ in enumerate(engine.executor.warm(), 1):
            tell(f"compiled step {i} of {shapes}")
    return ServedModel(name=asked.served_model or folder.resolve().name, text=text, engine=engine)
