"""The program that a script starts, behind torchrun, srun, python and the like."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from shardwise.errors import BadRequest
from shardwise.planner.export.script.expand import Value, as_unset, as_written, unknown_in
from shardwise.planner.export.script.manifest import script_of
from shardwise.planner.export.script.run import FILES_OF_KEYS, ScriptRun, Started


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A program as a script starts it: `program` is its file or module ("" where the text is
    arguments alone), `nodes` and `each` are as written, "" where nothing says them."""

    program: str
    arguments: tuple[str, ...]
    nodes: str = ""
    each: str = ""
    unset: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables, and XPK's `--tpu-type` and `--num-slices` under these names."""
    options: tuple[str, ...] = ()
    """The launcher's own words."""
    others: int = 0
    """How many more programs the script starts."""

    @property
    def origin(self) -> frozenset[str]:
        """As `words`, without the name of a file of Python, which anybody may give it."""
        own = self.program.rpartition("/")[0] if self.program.endswith(".py") else self.program
        return frozenset(re.split(r"[\W_]+", own.lower())) - {""}

    @property
    def words(self) -> frozenset[str]:
        """The words of the program's path: trl, scripts and sft of trl/scripts/sft.py."""
        return frozenset(re.split(r"[\W_]+", self.program.removesuffix(".py").lower())) - {""}


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Options of a launcher by what they say, and those that take no value."""

    nodes: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    total: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


_TORCHRUN = _Launcher(
    nodes=("--nnodes",),
    each=("--nproc-per-node",),
    switches=("--standalone", "--no-python", "--run-path", "--use-env", "-m", "--module"),
)
_LAUNCHERS: Mapping[str, _Launcher] = {
    "torchrun": _TORCHRUN,
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate": _Launcher(
        nodes=("--num-machines",),
        total=("--num-processes",),
        switches=(
            *("--multi-gpu", "--use-deepspeed", "--use-fsdp", "--debug", "--cpu", "-m"),
            *("--module", "--no-python", "--quiet", "--use-parallelism-config"),
            *("--use-megatron-lm", "--enable-cpu-affinity", "--tpu", "--same-network"),
        ),
    ),
    **dict.fromkeys(("tune", "colossalai"), _TORCHRUN),
    "deepspeed": _Launcher(
        nodes=("--num-nodes",),
        each=("--num-gpus",),
        switches=(
            "--module",
            "--no-python",
            "--no-local-rank",
            "--no-ssh",
            "--force-multi",
            "--bind-cores-to-rank",
        ),
    ),
}
_SCHEDULERS: Mapping[str, _Launcher] = {
    "srun": _Launcher(
        nodes=("-N", "--nodes"),
        each=("--ntasks-per-node", "--gpus-per-node", "--gres"),
        total=("-n", "--ntasks"),
    ),
    "mpirun": _Launcher(each=("-npernode", "--npernode"), total=("-n", "-np", "--np")),
}
"""What starts a process per device, or a torchrun per node."""
_PYTHON = re.compile(r"python[\d.]*")
_PROGRAMS = ("trl", "llamafactory-cli", "swift", "litgpt", "axolotl", "megatron")
"""Programs that train, by the names that shells know; those that start torchrun themselves take its
processes and nodes from NPROC_PER_NODE and NNODES."""
_WRAPPERS = ("uv", "poetry", "conda", "nohup", "numactl", "nsys", "env", "time", "nice", "docker")
_WRAPPERS += ("podman", "singularity", "apptainer", "srun", "torchx", "stdbuf", "exec")
"""Commands that start the one behind their own options."""
_SLURM = {
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), ("-N", "--nodes")),
    "SLURM_NTASKS": ("-n", "--ntasks"),
    "SLURM_NTASKS_PER_NODE": ("--ntasks-per-node",),
    "SLURM_GPUS_PER_NODE": ("--gpus-per-node",),
    "SLURM_GPUS_ON_NODE": ("--gpus-per-node", "--gres", "--ntasks-per-node"),
}
"""Variables that Slurm sets, and the `#SBATCH` options that say their values."""


@lru_cache(maxsize=256)  # an edit is tried at many places, and each is read several times
def launch_of(text: str) -> Launch | None:
    """The program that a text starts, or whose arguments it is; None where it is no such.

    Raises BadRequest for a script that is not as bash writes it, or without end.
    """
    text = script_of(text) or text
    batch = _options(_batch_words(text), _SCHEDULERS["srun"])
    held = {name: _first(batch, flags) for name, flags in _SLURM.items()}
    values: dict[str, Value] = {name: value for name, value in held.items() if value}
    try:
        started = ScriptRun(text).all(values)
    except RecursionError:
        raise BadRequest("the script is nested too deep; write it plainly") from None
    found = [launch for command in started for launch in _launches(command, batch)]
    if not found:
        return None
    first = max(found, key=lambda launch: len(launch.arguments))
    others = len({(launch.program, launch.arguments) for launch in found}) - 1
    return Launch(**{**{n: getattr(first, n) for n in first.__slots__}, "others": others})


@lru_cache(maxsize=256)
def written_by(text: str) -> Mapping[str, str]:
    """The files of keys that a script writes itself (`cat > "$CONFIG" <<EOF`), by their names
    without a folder; none of a text that is not a script."""
    run = ScriptRun(text)
    try:
        run.all({})
    except (BadRequest, RecursionError):
        return {}
    return {name: held for name, held in run.written.items() if name.endswith(FILES_OF_KEYS)}


def _batch_words(text: str) -> list[str]:
    lines = re.findall(r"^#SBATCH[ \t]+(.*?)(?:[ \t]#.*)?$", text, re.MULTILINE)
    return [word for line in lines for word in line.split()]


def _launches(started: Started, batch: Mapping[str, str]) -> Iterator[Launch]:
    """The program of one command, if it is one that trains."""
    words, values = started
    at = _program_at(words)
    if at is None:
        return
    nodes, each = _counts(batch, _SCHEDULERS["srun"])
    for i, word in enumerate(words[:at]):
        if (row := _SCHEDULERS.get(_base(word))) is not None:
            nodes, each = _counts({**batch, **_options(words[i + 1 : at], row)}, row)
    rest = words[at:]
    if rest and _PYTHON.fullmatch(_base(rest[0])):
        rest = _after_python(rest[1:])
    row = _LAUNCHERS.get(_base(rest[0])) if rest else None
    options: list[str] = []
    if row is not None:
        whole = rest[1:]
        given, rest = _split_options(whole, row)
        options = whole[: len(whole) - len(rest)]
        own = _counts(given, row)
        nodes, each = own[0] or nodes, own[1] or each
    if not rest:
        return
    if row is None and _base(rest[0]) in _PROGRAMS:
        each = _environment(values, "NPROC_PER_NODE") or each
        nodes = _environment(values, "NNODES") or nodes
    program, arguments = ("", rest) if rest[0].startswith("-") else (rest[0], rest[1:])
    texts = tuple(map(as_written, arguments))
    unset = dict.fromkeys(name for word in arguments for name in unknown_in(word))
    yield Launch(
        program=as_written(program),
        arguments=texts,
        nodes=as_written(nodes),
        each=as_written(each),
        unset=tuple(unset),
        options=tuple(map(as_written, options)),
        environment={k: as_unset(v) for k, v in values.items() if isinstance(v, str)},
    )


def _environment(values: Mapping[str, Value], name: str) -> str:
    """A variable's value; "" where there is none."""
    value = values.get(name, "")
    return as_unset(value) if isinstance(value, str) else ""


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _program_at(words: Sequence[str]) -> int | None:
    """Where the launcher or the program begins in a command's words."""
    if words[0].startswith("--") or words[0].endswith(".py") or words[0] in _PROGRAMS:
        return 0
    for i, word in enumerate(words):
        base = _base(word)
        if base in _LAUNCHERS or _PYTHON.fullmatch(base):
            return i
    srun = _base(words[0]) in _SCHEDULERS
    if _base(words[0]) in _WRAPPERS:
        own = next((i for i, word in enumerate(words) if word in _PROGRAMS), None)
        if own is not None:
            return own
    return next((i for i, word in enumerate(words) if srun and word.endswith(".py")), None)


def _after_python(words: list[str]) -> list[str]:
    """A python's words from the script or the module on."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c"):
        at += 2 if words[at] in ("-X", "-W") else 1
    if words[at : at + 1] == ["-c"]:
        return []
    return words[at + 1 :] if words[at : at + 1] == ["-m"] else words[at:]


def _split_options(words: list[str], row: _Launcher) -> tuple[dict[str, str], list[str]]:
    """A launcher's options by name, and what follows them."""
    at = 1 if words[:1] in (["launch"], ["run"]) else 0
    begin = at
    while at < len(words) and words[at].startswith("-"):
        name = _spelt(words[at])
        alone = "=" in words[at] or name in row.switches or words[at] == "--"
        alone = alone or words[at + 1 : at + 2] == [] or words[at + 1].startswith("--")
        at += 1 if alone else 2
    return _options(words[begin:at], row), words[at:]


def _spelt(word: str) -> str:
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _options(words: Sequence[str], row: _Launcher) -> dict[str, str]:
    """The values of the options of a row that stand among words."""
    found = {}
    names = (*row.nodes, *row.each, *row.total)
    for i, word in enumerate(words):
        name, short = _spelt(word), word[:2]
        if name in names and "=" in word:
            found[name] = word.partition("=")[2]
        elif name in names and i + 1 < len(words):
            found[name] = words[i + 1]
        elif short in names and re.fullmatch(r"-[nN]\d+", word):
            found[short] = word[2:]
    return {name: value.rpartition(":")[2] for name, value in found.items()}  # gpu:8, 1:4


def _first(given: Mapping[str, str], names: Sequence[str]) -> str:
    return next((given[name] for name in names if name in given), "")


def _counts(given: Mapping[str, str], row: _Launcher) -> tuple[str, str]:
    """Nodes, and processes of each, as options say them."""
    nodes, each = _first(given, row.nodes), _first(given, row.each)
    total = _first(given, row.total)
    if not each and total.isdigit():
        many = int(nodes) if nodes.isdigit() and int(nodes) else 1
        each = str(int(total) // many) if int(total) % many == 0 else ""
    return nodes, each
