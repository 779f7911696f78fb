"""What the scripts of servers start: each is run by bash with commands in place of the real ones
that write down the words they are called with."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COMMANDS = ("vllm", "vllm-router", "python3")
GIVEN = {
    "MODEL": "folder/model",
    "SERVERS": "http://a:8000 http://b:8000",
    "PREFILL": "http://a:8000",
    "DECODE": "http://b:8000 http://c:8000",
    "LEADER": "first-host",
    "RANK": "1",
}

STUB = """#!{python}
import json, sys
open("{said}", "w").write(json.dumps(["{name}", *sys.argv[1:]]))
"""


def calls(text: str) -> dict[str, list[str]]:
    """The words that each case of a script calls."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in COMMANDS:
            stub = folder / name
            stub.write_text(STUB.format(python=sys.executable, said=folder / "said", name=name))
            stub.chmod(0o755)
        script = folder / "script"
        script.write_text(text)
        path = f"{folder}:{os.environ['PATH']}"
        found = {}
        for case in cases(text):
            env = {**os.environ, **GIVEN, "PATH": path}
            subprocess.run(["bash", "-eu", str(script), case], env=env, check=True, timeout=60)
            found[case] = json.loads((folder / "said").read_text())
        return found


def cases(text: str) -> list[str]:
    """The names of a script's cases."""
    return [line[:-1] for line in text.splitlines() if line[:-1].isalpha() and line.endswith(")")]
