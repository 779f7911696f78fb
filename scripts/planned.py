"""docs/lab/planned.json and .md: what plans predict beside what their compiled steps have.

    python scripts/planned.py [--cache FOLDER] [--only NAME]

Compiles the step of every plan of `planned_steps/plans.py` for v5e:2x4 by libtpu (about ten
CPU seconds each; no TPU is needed) and keeps it in the folder, by plan, compilers' versions and the
sources that make a program, so that a run that was stopped goes on; only what is not there is
compiled. With --only nothing is written.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from compiled.programs import MAKERS, sources
from made import made
from planned_steps.plans import small_plans
from planned_steps.steps import compiled_texts, read_step
from planned_table import SCHEMA, document, page, row_of

from shardwise.errors import ShardwiseError
from shardwise.models import ModelConfig
from shardwise.plans.files import plan_dict
from shardwise.plans.train import TrainPlan
from shardwise.profiler.ahead import CompileCache, default_root
from shardwise.profiler.ahead.cache import key_of

TOPOLOGY = "v5e:2x4"
DOCS = Path(__file__).parents[1] / "docs" / "lab"
JOB = Path(__file__).parent / "planned_steps" / "job.py"
STEP_MAKERS = (
    *MAKERS,
    "plans/*.py",
    "runtime/trainer/*.py",
    "scheduling/pipeline/*.py",
)


def main() -> None:
    """Compile what is missing, then write both files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=default_root().parent / "planned")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    options = parser.parse_args()
    plans, rows = small_plans(), []
    if unknown := set(options.only) - set(plans):
        sys.exit(f"no plan is called {', '.join(sorted(unknown))}; there are {', '.join(plans)}")
    for name in options.only or plans:
        plan, cfg = plans[name]
        try:
            answer = _compiled(plan, cfg, CompileCache(root=options.cache))
        except ShardwiseError as error:
            sys.exit(f"{name}: {error}")
        rows.append(row_of(name, plan, read_step(answer, plan)))
        print(f"{name}: {len(rows[-1]['order'])} arrays", file=sys.stderr, flush=True)
    if options.only:
        return
    doc = {"schema_version": SCHEMA, **made(), "topology": TOPOLOGY, "rows": rows}
    (DOCS / "planned.json").write_text(document(doc), encoding="utf-8")
    (DOCS / "planned.md").write_text(page(doc), encoding="utf-8")


def _compiled(plan: TrainPlan, cfg: ModelConfig, cache: CompileCache) -> dict[str, Any]:
    """The step's programs, from the cache or compiled now."""
    key = key_of("planned", plan_dict(plan), TOPOLOGY, sources(STEP_MAKERS), JOB.read_text())
    if held := cache.load(key):
        record, texts = held
        return {**record, "hlo": json.loads(texts)}
    (answer,) = compiled_texts([(plan, cfg)], TOPOLOGY)
    cache.store(key, {k: v for k, v in answer.items() if k != "hlo"}, json.dumps(answer["hlo"]))
    return answer


if __name__ == "__main__":
    main()
