"""A server in a process of its own, for clients to ask."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen


@contextmanager
def served(command: Sequence[str], port: int, log: Path, **around) -> Iterator[str]:
    """The address of a server that is started with `--port` and ended again."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=file, stderr=file, **around
        )
    try:
        url = f"http://127.0.0.1:{port}"
        while not healthy(url):
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.3)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def healthy(url: str) -> bool:
    """Whether a server takes requests."""
    try:
        with urlopen(f"{url}/health", timeout=2):
            return True
    except OSError:
        return False


def ours(folder: Path) -> list[str]:
    """The command of our server."""
    words = ["serve", str(folder), "--weights", "f32", "--log-level", "warning"]
    return [sys.executable, "-m", "shardwise", *words]


def ran(*command: str, **around) -> str:
    """What a program printed. Raises where it failed."""
    found = subprocess.run(command, capture_output=True, text=True, **around)
    assert found.returncode == 0, f"{command}\n{found.stdout[-2000:]}\n{found.stderr[-3000:]}"
    return found.stdout
