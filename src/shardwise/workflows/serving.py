"""Serve a checkpoint: its text, and an engine that is ready to step."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardwise.runtime.engine.core import Engine, StepRecord
from shardwise.runtime.engine.generation import Finish, Generation, Sampling, TokenLogprobs
from shardwise.runtime.engine.open import Tell, open_engine
from shardwise.runtime.engine.thread import AnswerStream, Asked, Delta, EngineThread
from shardwise.runtime.text.answer_text import AnswerText
from shardwise.runtime.text.model_text import ModelText, read_model_text
from shardwise.scheduling.step import StepShape
from shardwise.workflows.inputs import check_choice, whole_number

__all__ = [
    "AnswerStream",
    "AnswerText",
    "Asked",
    "Delta",
    "Engine",
    "EngineThread",
    "Finish",
    "Generation",
    "ModelText",
    "Sampling",
    "ServeModelRequest",
    "ServedModel",
    "StepRecord",
    "StepShape",
    "TokenLogprobs",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeModelRequest:
    """Which checkpoint is served, and how much at once; 0 and "" leave it to model and device."""

    model: str
    served_model: str | None = None
    sequences: int = 32
    prefill_chunk: int = 512
    seq: int = 0
    kv_tokens: int = 0
    dtype: str = ""
    kv: str = ""
    warm: str = "lazy"

    def __post_init__(self) -> None:
        check_choice(self.warm, "--warm", WARMINGS)
        whole_number(self.sequences, "--sequences", least=1, most=4096)


def open_replica(asked: ServeModelRequest, tell: Tell = lambda _: None) -> ServedModel:
    """Load a checkpoint folder; `tell` hears what it is at. Raises BadRequest."""
    folder = Path(asked.model)
    text = read_model_text(folder)
    engine = open_engine(
        folder,
        text.end_ids,
        sequences=asked.sequences,
        budget=max(asked.prefill_chunk, asked.sequences + 1),
        longest=asked.seq,
        kv_tokens=asked.kv_tokens,
        dtype=asked.dtype,
        kv=asked.kv,
        warm=asked.warm,
        tell=tell,
    )
    return ServedModel(name=asked.served_model or folder.resolve().name, text=text, engine=engine)
