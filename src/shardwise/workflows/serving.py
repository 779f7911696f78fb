"""Serve a checkpoint: its text, and an engine that is ready to step."""

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.runtime.engine.core import Engine, StepRecord
from shardwise.runtime.engine.generation import Finish, Generation, Sampling, TokenLogprobs
from shardwise.runtime.engine.thread import AnswerStream, Asked, Delta, EngineThread
from shardwise.runtime.text.answer_text import AnswerText
from shardwise.runtime.text.model_text import ModelText, read_model_text
from shardwise.scheduling.step import StepShape

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
    "Replica",
    "Sampling",
    "StepRecord",
    "StepShape",
    "TokenLogprobs",
    "read_model_text",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A model that can be asked: its `name` to clients, its text, its engine. `predict` gives the
    seconds that a step should take, where the plan says so."""

    name: str
    text: ModelText
    engine: Engine
    predict: Callable[[StepShape], float] | None = None
