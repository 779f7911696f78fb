"""Every option of the command line: in which group of `--help` it stands, and its one meaning.

An option means the same in all commands that take it; what a command says of it in `--help` only
adds which values it takes there. docs/options.md is written of this table and of the commands by
`scripts/options.py`.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from shardwise.apps.cli.option_fields import table

DATA = Path(__file__).with_suffix(".json")
"""Of each group its options without a field, by their longest name, and what each means."""
GROUPS: Mapping[str, Mapping[str, str]] = {
    group: {**options} | {flag: said for flag, (of, said) in table().items() if of == group}
    for group, options in json.loads(DATA.read_text("utf-8")).items()
}
"""Of each group all of its options; those of requests are as their fields say."""


def group_of(flags: list[str]) -> str:
    """The group of an option with these names; empty for one that the table lacks.

    >>> group_of(["-o"]), group_of(["-q", "--quiet"])
    ('Files', 'How much is said')
    """
    names = set(flags)
    return next((group for group, options in GROUPS.items() if names & options.keys()), "")
