"""Small models and training shapes whose counts can be written down by hand."""

from tests.models.cases import llama

from shardwise.models import ModelConfig, Parameter, from_hf, parameters
from shardwise.planner.step.work import TrainShape
from shardwise.plans import TrainDtypes
from shardwise.work import Op, Work

D, F, L, N, K, H, V = 64, 160, 3, 8, 2, 8, 1000
"""The dims of `dense()`: all of them divide over the small degrees of the tests."""

ATTENTION = D * N * H + 2 * D * K * H + N * H * D
MLP = 3 * D * F
NORMS = 2 * D
LAYER = ATTENTION + MLP + NORMS
ENDS = 2 * V * D + D
PARAMS = L * LAYER + ENDS

E, EXPERTS_PER_TOKEN, FE = 8, 2, 96
"""Experts of `moe()`, how many a token uses, and their width."""


def rows_of(cfg: ModelConfig, group: int) -> list[Parameter]:
    """The matmul rows of a layer group, in table order."""
    return [row for row in parameters(cfg) if row.group == group and row.role == "matmul"]


def dense(**changes) -> ModelConfig:
    """Llama with the dims above."""
    return from_hf(llama(**changes), name="dense")


def moe() -> ModelConfig:
    """Mixtral with the dims above and 8 experts of width FE, 2 per token."""
    config = llama(
        architectures=["MixtralForCausalLM"],
        model_type="mixtral",
        intermediate_size=FE,
        num_local_experts=E,
        num_experts_per_tok=EXPERTS_PER_TOKEN,
    )
    return from_hf(config, name="moe")


def step(
    *,
    sequences=4.0,
    length=128,
    microbatches=1.0,
    remat="none",
    zero=1,
    sequence_parallel=True,
    dtypes=None,
    stage_share=None,
    choices=None,
    **degrees,
) -> TrainShape:
    """A TrainShape; degrees by axis name, an even share of the layers per stage, `choices` of the
    plan by name."""
    share = 1.0 / degrees.get("stage", 1) if stage_share is None else stage_share
    return TrainShape(
        degrees={axis: float(d) for axis, d in degrees.items()},
        sequences=sequences,
        sequence_length=length,
        microbatches=microbatches,
        stage_share=share,
        remat=remat,
        zero=zero,
        sequence_parallel=sequence_parallel,
        dtypes=dtypes or TrainDtypes(),
        **(choices or {}),
    )


def over(work: Work, axis: str) -> Work:
    """The collectives that an axis takes part in."""
    return work.where(lambda o: o.collective is not None and axis in o.collective.axes)


def runs(work: Work, name: str, phase: str | None = None) -> float:
    """How often ops whose name ends in `name` run per step."""
    mine = [o for o in work.ops if o.name.endswith(name) and phase in (None, o.phase)]
    assert mine, f"no op is called {name}"
    return float(sum(o.count for o in mine))


def named(work: Work, name: str) -> Op:
    """The one op of that name and its first phase."""
    return next(o for o in work.ops if o.name == name)
