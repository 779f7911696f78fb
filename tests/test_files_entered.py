"""How many files above the planner a planning command enters: a ceiling, to be lowered."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
ABOVE = ("commands/", "apps/cli/", "apps/page/", "evidence/")
COUNT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from rooms_entered import entered
print(json.dumps(list(entered(sys.argv[2:], ""))))
"""
MOST = {
    "plan train --model llama-3-8b --on v5e:4x4 --batch 32seq --seq 2048": 14,
    "plan serve --model llama-3-8b --on h100:1 --input 512 --output 32 --tpot 40ms": 11,
}


@pytest.mark.parametrize("words", MOST)
def test_a_planning_command_enters_few_files_above_the_planner(words):
    # In a process of its own: here answers may be known already, and enter nothing.
    asked = [sys.executable, "-c", COUNT, str(SCRIPTS), *words.split()]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    files = [name for name in json.loads(done.stdout) if name.startswith(ABOVE)]
    assert len(files) <= MOST[words], files
