"""The boundary holds: whole examples are accepted, damaged ones answered with one message.

Every finding of a longer run becomes a test of the layer that it was in; this is the net. It runs
in processes of its own (`scripts/fuzz`), since cases are forks and a test run has imported JAX.
docs/log.md has the figures of thousands of cases.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.kinds import FILES

ROOT = Path(__file__).parent.parent.parent
CASES = 100
FEW = 4
WHOLE = 6
SEED = 14


def rows(*options: str) -> list[dict]:
    """What `scripts/fuzz` says of each kind."""
    command = [sys.executable, str(ROOT / "scripts" / "fuzz"), "--seeds", str(SEED), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert found, done.stderr
    return found


@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
def test_whole_input_is_accepted_and_damaged_input_answered_with_one_message(file):
    """Were whole examples refused, the fuzzer would damage what is refused anyway."""
    holds(list(FILES[file].KINDS), CASES, WHOLE)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_a_few_of_each_kind(file):
    holds(list(FILES[file].KINDS), FEW, 1)


def holds(kinds: list[str], cases: int, whole: int) -> None:
    """So many damaged cases and whole ones of each kind break no rule."""
    found = rows("--kind", *kinds, "--cases", str(cases), "--whole", str(whole))
    assert sorted((row["kind"], row["whole"], row["cases"]) for row in found) == sorted(
        (kind, *part) for kind in kinds for part in ((False, cases), (True, whole))
    )
    for row in found:
        told = f"each with: scripts/fuzz --kind {row['kind']} --seeds {SEED} --only NUMBER"
        assert not row["broken"], (row, told)
        if row["whole"]:
            assert set(row["codes"]) <= {"0", "3", "4"}, row


def test_no_kind_stands_twice():
    kinds = [kind for file in FILES.values() for kind in file.KINDS]
    assert len(set(kinds)) == len(kinds)


RULES = {
    "{}['no']": "traceback",
    "(folder / 'PWNED').write_text('x')": "wrote PWNED",
    "(folder.parent / 'up').write_text('x')": "wrote up",
    "(folder / 'in').write_text('x')": "changed in",
    "bytearray(600_000_000)": "more than the undamaged example",
    "os._exit(7)": "exit code 7",
    "os._exit(2)": "without a message",
}


def test_a_broken_rule_is_seen():
    """The fuzzer's own proof: what breaks a rule is told."""
    code = (
        "import json, os\n"
        "from fuzz.cases import Case, run_case\n"
        f"for code in {list(RULES)!r}:\n"
        "    run = eval('lambda folder: ' + code)\n"
        "    print(json.dumps(run_case(Case(files={'in': b'given'}, run=run)).broken))\n"
    )
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=around, capture_output=True, text=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(RULES), done.stderr
    for said, broken in zip(RULES.values(), told, strict=True):
        assert any(said in rule for rule in broken), (said, broken)
