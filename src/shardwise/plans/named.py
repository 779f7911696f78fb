"""Plans of published runs, by name, which `audit:NAME` means wherever a plan file may stand.

The files lie in `data/audits`: one plan each, with the source in its first lines, and a config.json
beside it where the zoo lacks the model. A plan file anywhere may name such a neighbour.
"""

from dataclasses import replace
from pathlib import Path

from shardwise.errors import unknown
from shardwise.models.zoo import split_family, with_family
from shardwise.plans.serve import ServePlan
from shardwise.plans.train import TrainPlan

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
    word, family = split_family(plan.model)
    beside = path.parent / word
    named_file = word.endswith(".json") and not Path(word).is_absolute()
    if not (named_file and beside.is_file()):
        return plan
    return replace(plan, model=str(with_family(beside, family)))
