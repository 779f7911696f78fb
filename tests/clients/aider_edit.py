"""aider, by its documented settings of an OpenAI-compatible API: it edits a file.

The model has random weights, so the answer is held to an edit in aider's own format.
"""

import json
import os
import re
import tempfile
from pathlib import Path

from tests.clients.served import ran

NEEDS = ("aider-chat==0.86.2",)
BEFORE = "def add(a, b):\n    return a + b\n"
AFTER = "def add(a, b):\n    return b + a\n"
ANSWER = f"sums.py\n```\n{AFTER}```\n"
SENT = re.compile(r"Tokens: ([\d.,]+k?) sent, ([\d.,]+) received")


def run(url: str, folder: Path, programs: Path) -> dict:
    """An edit by a whole answer, and one by a stream; the figures of the record."""
    around = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    around |= {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"}
    model, found = f"openai/{folder.name}", {"version": NEEDS[0].partition("==")[2]}
    form = {"structured_outputs": {"choice": [ANSWER]}}
    settings = [{"name": model, "extra_params": {"max_tokens": 200, "extra_body": form}}]
    with tempfile.TemporaryDirectory() as passing:
        file = Path(passing) / "sums.py"
        (Path(passing) / ".aider.model.settings.yml").write_text(json.dumps(settings))
        for name in ("no-stream", "stream"):
            file.write_text(BEFORE)
            said = ran(
                *(str(programs / "aider"), "--model", model, f"--{name}", "sums.py"),
                *("--message", "Swap the terms.", "--edit-format", "whole", "--yes-always"),
                *("--no-git", "--no-check-update", "--analytics-disable", "--no-pretty"),
                *("--no-show-model-warnings", "--no-show-release-notes", "--map-tokens", "0"),
                env=around | {"HOME": passing},
                cwd=passing,
            )
            assert file.read_text() == AFTER, said[-3000:]
            ((_, received),) = SENT.findall(said)
            found[name.replace("-", "_")] = int(received)
    return found
