"""A model that can be asked: what `serving.py` opens, and what servers and commands ask."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.runtime.engine.core import Engine, StepRecord
from shardwise.runtime.engine.embedding import Embedder
from shardwise.runtime.engine.model_executor import ModelExecutor
from shardwise.runtime.text.model_text import ModelText
from shardwise.runtime.text.reasoning import NO_REASONING, REASONING_FORMATS, ReasoningFormat
from shardwise.runtime.text.tool_formats import NO_TOOLS, TOOL_FORMATS, ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that can be asked: its `name` to clients, its text, its engine. `predict` gives the
    seconds that a step should take, where the plan says so."""

    name: str
    text: ModelText
    engine: Engine
    predict: Callable[[StepRecord], float] | None = None
    tool_format: str = NO_TOOLS
    """How the model writes calls of tools."""
    reasoning: str = NO_REASONING
    """How it marks what it thinks."""
    embedder: Callable[[int], Embedder] | None = None
    """Makes what makes vectors by a variant; it may raise BadRequest or MissingPart."""
    adapters: tuple[str, ...] = ()
    """Their names to clients."""
    serves: Mapping[str, Any] = field(default_factory=dict)
    """How: mesh, replicas, dtypes, pages, slots."""
    close: Callable[[], None] = lambda: None
    """Lets other hosts end."""

    @property
    def tools(self) -> ToolFormat | None:
        """The row of its `tool_format`."""
        return TOOL_FORMATS.get(self.tool_format)

    @property
    def names(self) -> tuple[str, ...]:
        """The model's and its adapters', by the number of their variant."""
        return (self.name, *self.adapters)

    def variant(self, name: str | None) -> int:
        """The number of a name; the model's own where none is given."""
        return 0 if name is None else self.names.index(name)

    @property
    def thoughts(self) -> ReasoningFormat | None:
        """The row of its `reasoning`."""
        return REASONING_FORMATS.get(self.reasoning)

    @property
    def compiles(self) -> bool:
        """Whether a program is compiled behind, on which no answer depends."""
        executors = (replica.executor for replica in self.engine.replicas)
        own = (e.compiler for e in executors if isinstance(e, ModelExecutor))
        return any(compiler is not None and compiler.busy for compiler in own)
