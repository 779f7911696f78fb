"""ServeRequest: what is to be served, to which objective, and what a search may choose from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.simulate.metrics import Objectives
from shardwise.plans.serve import ServeDtypes
from shardwise.roofline.engines import IDEAL_ENGINE, Engine

Objective = Literal["smallest", "cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Prefill at a given share of the peak by 2 * params * tokens (the book's arithmetic)."""

    share: float
    params: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """Requests of `input_length` prompt and `output_length` answer tokens, and how to serve them.

    `pieces` are slices of one chip, smallest first. `chunks` are the most tokens of a step, or of a
    chunk of a prompt. `pins` fix degrees of the mesh, `engine` is the software that serves, and
    `constants` says how `pieces` were read ("vendor" or "book"). `goal` bounds the times.

    Objective "smallest" asks for the first slice that meets the goal on an idle server, and for the
    mesh and batch with most tokens per second and chip on it, with the first of `dtypes` and
    `chunks`. `batch` fixes the batch where it is not 0; `utilisation` replaces the expected prefill
    time.

    Objective "cost" asks for the cheapest servers under a load, with the best of `dtypes` and
    `chunks`: requests come at random, `rate` per second (0: as many as the servers can take), and
    the share `percentile` of them meets the goal.
    """

    cfg: ModelConfig
    model: str
    pieces: tuple[Slice, ...]
    input_length: int
    output_length: int
    dtypes: tuple[ServeDtypes, ...] = (ServeDtypes(),)
    chunks: tuple[int, ...] = (8192,)
    pins: Mapping[str, int] = field(default_factory=dict)
    engine: Engine = IDEAL_ENGINE
    constants: str = "vendor"
    goal: Objectives = field(default_factory=Objectives)
    objective: Objective = "smallest"
    batch: int = 0
    utilisation: Utilisation | None = None
    rate: float = 0.0
    percentile: float = 0.9
