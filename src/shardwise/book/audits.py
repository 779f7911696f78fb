"""Plans of published runs that the book audits, by name, and the verdicts on any training plan.

The files lie in `data/audits`: one plan each, with the source in its first lines, and a config.json
beside it where the zoo lacks the model. A plan file anywhere may name such a neighbour.
"""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from shardwise.book.rules.audit import audit, compute_bound
from shardwise.errors import unknown
from shardwise.models import ModelConfig
from shardwise.plans import ServePlan, TrainPlan
from shardwise.workflows.inputs import Hardware

DATA = Path(__file__).parent / "data" / "audits"
PREFIX = "audit:"


def audit_names() -> tuple[str, ...]:
    """Names that `audit:NAME` takes, sorted."""
    return tuple(sorted(path.stem for path in DATA.glob("*.yaml")))


def audit_about(name: str) -> str:
    """What a shipped plan is and where its choices were published: its first lines."""
    lines = (DATA / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def plan_path(text: str) -> Path:
    """The file that `audit:NAME` or a path means; BadRequest lists the names for a typo."""
    if not text.startswith(PREFIX):
        return Path(text)
    name = text.removeprefix(PREFIX)
    if name not in audit_names():
        raise unknown("audited plan", name, audit_names(), "`shardwise book list` shows all")
    return DATA / f"{name}.yaml"


def with_neighbour(plan: TrainPlan | ServePlan, path: Path) -> TrainPlan | ServePlan:
    """The plan with its model found beside the plan's file, where it names a file there."""
    beside = path.parent / plan.model
    named_file = plan.model.endswith(".json") and not Path(plan.model).is_absolute()
    return replace(plan, model=str(beside)) if named_file and beside.is_file() else plan


def audit_result(plan: TrainPlan, cfg: ModelConfig, hardware: Hardware) -> dict[str, Any]:
    """The verdicts as a document's `audit`."""
    verdicts = audit(plan, cfg, hardware.slice(plan.slice).slice)
    chips = prod(plan.box) * plan.slices
    return {
        "compute_bound": compute_bound(verdicts),
        "tokens_per_chip": plan.tokens / chips,
        "verdicts": [
            {
                "strategy": v.strategy,
                "degree": v.degree,
                "have": v.have,
                "need": v.need,
                "rule_need": v.rule_need,
                "unit": v.unit,
                "at_least": v.at_least,
                "ok": v.ok,
                "rule": v.rule,
                "source": v.source,
                "text": v.text,
            }
            for v in verdicts
        ],
    }
