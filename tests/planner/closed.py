"""A plan as the search prices it: pipelines by the closed form of uniform stages."""

from dataclasses import replace

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.evaluate import TrainAnswer, evaluate_train
from shardwise.plans import TrainPlan


def closed_form(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> TrainAnswer:
    """The plan's answer, its seconds by the closed form instead of the timeline."""
    answer = evaluate_train(plan, cfg, piece)
    return replace(answer, estimate=answer.priced.estimate())
