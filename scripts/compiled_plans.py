"""docs/lab/compiled.md and .json: published models' plans beside what the real compiler makes of
them.

    python scripts/compiled_plans.py [--cache FOLDER] [--only NAME] [--renew NAME] [--dump] [--kept]
    python scripts/compiled_plans.py --drawn [--renew PHASE|NAME] [--kept]
    python scripts/compiled_plans.py --gpus
    python scripts/compiled_plans.py --base [--cache FOLDER] [--only NAME]

Each plan of `compiled/plans.py` is compiled once, by libtpu for a slice that is not here (5 to 150
CPU seconds each), and kept in the folder, so that a run that was stopped goes on; only what is not
there is compiled. With --only nothing is written. With --renew the other rows stay as they are in
the committed table, and the page says which rows are of a later commit; `--renew servers` renews
all that are no training plans. With --drawn the plans of `compiled/drawn.json` are compiled, into
docs/lab/compiled_drawn.md and .json; with --kept nothing is compiled: a row whose program is in the
folder is read again, another keeps what was compiled before beside what is predicted today.
With --gpus those of `compiled/gpus.py` are compiled for GPUs (`'.[gpu-compile]'`, 10 to 20 CPU
seconds each), and the other rows stay. With --base the programs of an earlier commit
(`compiled/base.py`) are compiled from its own sources, for the column of seconds before.
"""

import argparse
import json
import sys
from pathlib import Path

from compiled.base import base_of
from compiled.drawn_table import read_again, write_drawn
from compiled.gpus import section, with_gpus
from compiled.plans import FITS, MATCHED, phase_of, plan_of
from compiled.programs import compiled_case, dump
from compiled.table import later, page, row_of, summary_of
from made import made

from shardwise.commands.base.inputs import Hardware
from shardwise.errors import ShardwiseError
from shardwise.profiler.ahead import default_root

DOCS = Path(__file__).parents[1] / "docs" / "lab"
DUMPS = Path(__file__).parents[1] / "tests" / "commands" / "program" / "data" / "compiled"
DUMPED = ("ZeRO-1", "CP", "EP ragged", "8B, FSDP, v4, over")
"""Plans whose compiled programs the tests of the rules read."""
SCHEMA = 1


def main() -> None:
    """Compile what is missing, then write both files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=default_root().parent / "table")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--renew", action="append", default=[], metavar="NAME")
    parser.add_argument("--dump", action="store_true", help="also the programs that tests read")
    parser.add_argument("--drawn", action="store_true")
    parser.add_argument("--gpus", action="store_true")
    parser.add_argument("--base", action="store_true")
    parser.add_argument("--kept", action="store_true", help="compile nothing")
    options = parser.parse_args()
    if options.drawn:
        write_drawn(DOCS, options.cache, options.renew, options.kept)
        return
    known = json.loads((DOCS / "compiled.json").read_text(encoding="utf-8"))
    if options.gpus:
        write(with_gpus(known, options.cache))
        return
    if options.base:
        write({**known, "base": base_of(options.cache, options.only)})
        return
    hardware, rows = Hardware(), []
    if "servers" in options.renew:
        named = {**MATCHED, **FITS}
        options.renew = [name for name, row in named.items() if phase_of(row) != "train"]
    kept = {row["name"]: row for row in known["rows"]} if options.renew or options.kept else {}
    for name, row in {**MATCHED, **FITS}.items():
        if options.kept:
            rows.append(read_again(kept[name], row, plan_of(row, hardware), options.cache))
            continue
        if options.only and name not in options.only:
            continue
        if options.renew and name not in options.renew:
            rows.append(kept[name])
            continue
        try:
            case = compiled_case(plan_of(row, hardware), phase_of(row), hardware, options.cache)
        except ShardwiseError as error:
            sys.exit(f"{name}: {error}")
        rows.append(row_of(name, row, case))
        if options.dump and name in DUMPED:
            dump(case, options.cache, DUMPS / name.lower().replace(" ", "-"))
        memory = rows[-1]["memory"]
        print(f"{name}: peak {memory['error']:+.1%}", file=sys.stderr, flush=True)
    if options.only:
        return
    head = {name: known[name] for name in made()} if kept else made()
    renewed = known["renewed"] if options.kept else []
    renewed = later(known["renewed"], options.renew) if options.renew else renewed
    doc = {
        "schema_version": SCHEMA,
        **head,
        "renewed": renewed,
        "summary": summary_of(rows),
        "rows": rows,
        "base": known["base"],
        "gpus": known["gpus"],
    }
    write(doc)


def write(doc: dict) -> None:
    """Both files."""
    (DOCS / "compiled.json").write_text(json.dumps(doc, indent=1) + "\n", encoding="utf-8")
    (DOCS / "compiled.md").write_text(page(doc, section(doc["gpus"])), encoding="utf-8")


if __name__ == "__main__":
    main()
