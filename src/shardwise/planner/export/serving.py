"""A ServePlan in the words of an inference server, and back to the same plan.

The shell script of a server (`--to vllm`, `--to sglang`, `--to trtllm`) has a command for each
thing to start, by the script's first argument: `serve`, or for two pools `prefill` and `decode`;
`router`, which spreads requests over several servers; and `bench`, which measures what the plan
promises (`load_check.py`). The manifests of `deploy/` start the same commands. As for training
(`notes.py`), flags come first and comment lines hold the rest; what the server would run in another
way is refused, all of it at once.
"""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from shardwise.errors import BadRequest, entry_of, shown
from shardwise.hardware import Slice, parse_slice, slices_of
from shardwise.models import ModelConfig
from shardwise.planner.export import deploy, slurm_server
from shardwise.planner.export.flags import words_of
from shardwise.planner.export.hardware import is_tpu
from shardwise.planner.export.load_check import COMMAND, check_words, load_fields
from shardwise.planner.export.notes import (
    Exporter,
    Fields,
    changed,
    check_model,
    check_runs,
    exporter_of,
    fields_read,
    heading,
    in_front,
    note_lines,
    noted,
    plan_fields,
    plan_of_fields,
    unsaid,
)
from shardwise.planner.export.one_host import SharedHost, hosts_of, servers_in
from shardwise.planner.export.server_command import server_words
from shardwise.planner.export.server_flags import check_length
from shardwise.planner.export.server_program import (
    ALONE,
    DECODE,
    PREFILL,
    HostWords,
    ServerPool,
    ServerProgram,
    flag_words,
    pools_of,
)
from shardwise.planner.export.sglang import SGLANG
from shardwise.planner.export.trtllm import TRTLLM
from shardwise.planner.export.vllm import VLLM
from shardwise.planner.export.which_model import model_said, of_server
from shardwise.plans import ServePlan, model_hash
from shardwise.plans.servers import SERVING_SOFTWARE
from shardwise.plans.software import Obstacle

PROGRAMS: Mapping[str, ServerProgram] = {
    program.name: program for program in (VLLM, SGLANG, TRTLLM)
}

LOST: dict[str, str] = {
    "replicas": "start so many of these",
    "prefill_replicas": "start so many of these besides",
    "routing": "set it in the router",
    "scheduling.acceptance": "it is measured, not chosen",
    "scheduling.acceptances": "they are measured, not chosen",
}
"""What no flag of one server says."""

MODEL = '"${MODEL:?the checkpoint: a folder or a Hugging Face id}"'
URL = '"${URL:-http://localhost:8000}"'
LEADER = '"${LEADER:?the address of the first host}"'
RANK = '"${RANK:?the number of this host, from 0}"'
OTHERS = '$( [ "$RANK" = 0 ] || echo --headless )'
SERVERS = "${SERVERS:?their URLs}"
VARIABLES = (MODEL, URL, LEADER, RANK, OTHERS, SERVERS)
"""Words that the user's shell fills in; every other one is quoted."""


def script(
    program: ServerProgram, plan: ServePlan, cfg: ModelConfig, piece: Slice, target: str = ""
) -> str:
    """The shell script of a plan; errors name the `target`, or the program."""
    pools = pools_of(plan, piece)
    check_runs(target or program.name, [o for pool in pools for o in program.obstacles(pool, cfg)])
    commands = {pool.role: _server(program, pool, cfg) for pool in pools}
    shared = hosts_of(pools)
    for role, host in shared.items():
        commands[role] = host.looped(commands[role], program.ports.get(role, {}))
    first = next(iter(commands))
    if program.router and (len(pools) > 1 or plan.replicas > 1):
        commands["router"] = [_router(program, plan, pools, shared)]
    check = _quoted(check_words(plan, MODEL, URL))
    commands["bench"] = [" ".join(check[: len(COMMAND)]), *check[len(COMMAND) :]]
    cases = [f"{role})\n" + " \\\n  ".join(lines) + "\n;;\n" for role, lines in commands.items()]
    start = f'case "${{1:-{first}}}" in\n'
    return "#!/usr/bin/env bash\n" + start + "".join(cases) + "esac\n"


def _server(program: ServerProgram, pool: ServerPool, cfg: ModelConfig) -> list[str]:
    """The lines of a server's command: how it is started, then a flag each."""
    start = [f"{key}={value}" for key, value in program.environment(pool).items()]
    start += program.command(pool.piece, MODEL)
    rest = flag_words(program.flags(pool, cfg))
    if pool.hosts > 1:
        rest += program.hosts(pool, HostWords(leader=LEADER, rank=RANK, others=OTHERS))
    lines = [" ".join(_quoted(start)), *_quoted(rest)]
    if program.options is None:
        return lines
    text = deploy.yaml_text(dict(program.options(pool)))
    return [*lines, f"{program.options_flag}=/dev/stdin <<'OPTIONS'\n{text}OPTIONS"]


_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?\n)?\2$", re.MULTILINE | re.DOTALL)
"""A text within a script that a command reads."""


def _with_options(program: ServerProgram, text: str) -> tuple[str, str]:
    """A script without the texts in it, and the first of them where a program reads one."""
    if not program.options_flag:
        return text, ""
    match = _HERE.search(text)
    return _HERE.sub("", text), (match[3] or "") if match else ""


def _router(
    program: ServerProgram,
    plan: ServePlan,
    pools: Sequence[ServerPool],
    shared: Mapping[str, SharedHost],
) -> str:
    """The command of what spreads requests, over servers of its host where all are there."""
    policy = program.policies.get(plan.routing)
    words = [program.router, "--host=0.0.0.0", "--port=8000"]
    words += [f"--policy={policy}"] if policy else []
    together = len(shared) == len(pools) and all(host.alone for host in shared.values())
    if len(pools) == 1:
        urls = f"${{SERVERS:-{' '.join(shared[ALONE].urls())}}}" if together else SERVERS
        return " ".join([*words, "--worker-urls", urls])
    if together and any(host.first for host in shared.values()):
        lists = [
            f"--{role} {url}" + (f" {program.bootstrap + n}" if after and program.bootstrap else "")
            for (role, host), after in zip(shared.items(), (True, False), strict=True)
            for n, url in enumerate(host.urls())
        ]
        return " ".join([*words, program.two_pools, *lists])
    after = {PREFILL: f" {program.bootstrap}" if program.bootstrap else "", DECODE: ""}
    lists = [
        f"$(printf -- ' --{role} %s{port}' ${{{role.upper()}:?URLs of the servers that {role}}})"
        for role, port in after.items()
    ]
    return " ".join([*words, program.two_pools, *lists])


def _quoted(words: Sequence[str]) -> list[str]:
    """Words as a shell takes them, `VARIABLES` as they are."""
    return [_quote(word) for word in words]


def _quote(word: str) -> str:
    for variable in VARIABLES:
        before, found, after = word.partition(variable)
        if found:
            return "".join((before and shlex.quote(before), found, after and shlex.quote(after)))
    return shlex.quote(word)


def read_script(program: ServerProgram, text: str) -> Fields:
    """The fields that a script says; any command of the server will do."""
    if _is_anybodys(program, text):
        words = _command_in(program, text)
        return program.fields_of_any(words) | model_said(words)
    text, held = _with_options(program, text)
    words = words_of(program.name, text)
    if held:
        flag = program.options_flag
        joined = "\0".join(words).replace(f"{flag}\0", f"{flag}=").split("\0")
        words = [f"{flag}={held}" if word.startswith(f"{flag}=") else word for word in joined]
    parts = _parts(words)
    servers = {words[0]: words for words in parts if program.starts(words)}
    if not servers:
        mark = program.marks[0]
        raise BadRequest(f"{program.name}: no '{mark}' in the text; give a script that has it")
    started = {role: servers_in(words) for role, words in servers.items()}
    first = servers.pop(f"{PREFILL})", None)
    said = program.fields(next(iter(servers.values()), first or ()))
    for role, many in started.items():
        if many is not None:
            said["prefill_replicas" if role == f"{PREFILL})" else "replicas"] = many
    if first and servers:
        own = program.fields(first)
        said |= {"prefill.mesh": own["mesh"]} if own["mesh"] != said["mesh"] else {}
    for words in parts:
        if " ".join(COMMAND) in " ".join(words):
            said |= load_fields(words)
        elif "router" in words[0]:
            policy = next((w for w in words if w.startswith("--policy=")), "")
            named = {f"--policy={name}": routing for routing, name in program.policies.items()}
            said |= {"routing": named[policy]} if policy in named else {}
    return said


def _is_anybodys(program: ServerProgram, text: str) -> bool:
    """Whether a text is not a script of ours, which has a case for each of its commands, nor a loop
    that starts several servers of one host."""
    ours = re.search(r";;|^\s*for\s", text, re.MULTILINE)
    return ours is None and not program.options_flag


def _command_in(program: ServerProgram, text: str) -> list[str]:
    """The words of the server's command; BadRequest where there is none."""
    if words := server_words([program], text):
        return words
    mark = program.marks[0]
    raise BadRequest(f"{program.name}: no '{mark}' in the text; give a script that has it")


def unread_flags(text: str, target: str) -> list[str]:
    """A line for each flag of a server's command that was not read."""
    programs = [PROGRAMS[target]] if target in PROGRAMS else list(PROGRAMS.values())
    if not all(_is_anybodys(program, text) for program in programs if program.name == target):
        return []
    words = server_words(programs, text)
    program = next((p for p in programs if p.starts(words)), None)
    return [
        f"{flag}{'' if value == '' else f' = {shown(value)}'} is unknown and was not read"
        for flag, value in (program.unread(words) if program else {}).items()
    ]


def _parts(words: Sequence[str]) -> list[list[str]]:
    """The commands of a script: what stands between `;;`, without the words of the case itself."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == ";;":
            parts.append([])
        elif word.endswith(")") and word[:-1].isalpha() and not parts[-1][4:]:
            parts[-1] = [word]  # the words of the case itself stood before it
        else:
            parts[-1].append(word)
    return [part for part in parts if part]


def _scripts(program: ServerProgram) -> Exporter:
    """How the scripts of a server are written and read."""
    return Exporter(
        write=lambda plan, cfg, piece: script(program, plan, cfg, piece),
        read=lambda text: read_script(program, text),
        lost=lambda _: LOST | dict(program.lost),
    )


def _program_of(name: str) -> ServerProgram:
    return entry_of("server", name, PROGRAMS, f"in the {slurm_server.TARGET} export")


def _in_slurm(plan: ServePlan, cfg: ModelConfig, piece: Slice) -> str:
    target, name = slurm_server.TARGET, plan.engine
    if name not in PROGRAMS:
        rule = f"it starts {', '.join(program.title for program in PROGRAMS.values())}"
        remedy = f"plan with --for {next(iter(PROGRAMS))}"
        check_runs(target, [Obstacle(field="engine", value=name, rule=rule, remedy=remedy)])
    inner = script(PROGRAMS[name], plan, cfg, piece, target)
    return slurm_server.write(plan, piece, name, cfg.name, inner)


def _of_slurm(text: str) -> Fields:
    return slurm_server.read(text, lambda name, held: read_script(_program_of(name), held))


SERVE_EXPORTERS: Mapping[str, Exporter] = {
    **{name: _scripts(program) for name, program in PROGRAMS.items()},
    **deploy.exporters({n: p for n, p in PROGRAMS.items() if p.options is None}),
    slurm_server.TARGET: Exporter(write=_in_slurm, read=_of_slurm, lost=lambda _: LOST),
}
"""By the name that `--to` takes."""


def export_serve(plan: ServePlan, cfg: ModelConfig, piece: Slice, target: str) -> str:
    """The plan as the text of a target; `parse_serve` gives back the same plan. Raises BadRequest
    for an unknown target, another model, and with all obstacles at once for what the target cannot
    run."""
    exporter = exporter_of(SERVE_EXPORTERS, target, "export target for serving plans")
    check_model(plan, cfg)
    text = exporter.write(plan, cfg, piece)
    said = exporter.read(text)
    lines = note_lines(changed(plan_fields(plan), said, ServePlan), said, exporter.lost(piece))
    remarks = _remarks(plan, piece, target)
    return in_front([*heading("serving", target), *lines, *remarks], text)


def serves(text: str) -> bool:
    """Whether a text of a target that takes both kinds of plan is of a server."""
    return any(program.starts([text]) for program in PROGRAMS.values())


def _remarks(plan: ServePlan, piece: Slice, target: str) -> Iterator[str]:
    """What runs otherwise although every flag is set."""
    if plan.degree("data") * plan.degree("expert") > 1:
        why = "the plan cuts a prompt's tokens over data and expert, the server gives it to one"
        yield unsaid("mesh", dict(plan.mesh), f"{why}; TTFT is longer")
    if target in PROGRAMS and plan.engine in SERVING_SOFTWARE and plan.engine != target:
        title = PROGRAMS[target].title
        priced = SERVING_SOFTWARE[plan.engine].title
        why = f"its times are those of {priced}; plan --for {target} for those of {title}"
        yield unsaid("engine", plan.engine, why)
    if (
        target in PROGRAMS
        and is_tpu(piece)
        and any(pool.hosts > 1 for pool in pools_of(plan, piece))
    ):
        yield "# Start Ray over the hosts first."


def parse_serve(text: str, target: str, given: Fields | None = None) -> ServePlan:
    """The plan that a text says: its flags first, its notes for the rest, then what is `given`
    besides (`given_fields`). Raises BadRequest, by name for what is missing."""
    exporter = exporter_of(SERVE_EXPORTERS, target, "export target for serving plans")
    said = fields_read(exporter.read, text, target)
    fields = noted(text, said) | (given or {})
    if fields.get("model") is None:
        fields |= {"model": of_server(target, text)}
    for key, option in ASKED.items():
        if fields.get(key) is None:
            raise BadRequest(f"{target}: the text does not give the {key}; give it with {option}")
    plan = plan_of_fields("serve", fields | _chips_of_prompts(fields), target)
    assert isinstance(plan, ServePlan)
    if target in PROGRAMS:
        check_length(target, text, plan)
    return plan


def _chips_of_prompts(fields: Fields) -> Fields:
    """The slice of a pool of prompts where no note says it: the smallest that its mesh fills."""
    mesh = fields.get("prefill.mesh")
    if mesh is None or "prefill.slice" in fields:
        return {}
    chip = parse_slice(fields["slice"]).chip
    least = math.prod(mesh.values()) / chip.jax_devices_per_chip
    own = next((piece for piece in slices_of(chip, math.ceil(least)) if piece.chips >= least), None)
    return {"prefill.slice": str(own), "prefill.box": list(own.shape)} if own else {}


ASKED = {
    "model": "--model",
    "slice": "--on",
    "input_length": "--input",
    "output_length": "--output",
}
"""What a text may leave out, and the option that says it."""


def given_fields(
    name: str | None,
    cfg: ModelConfig | None,
    piece: Slice | None,
    lengths: tuple[int | None, int | None] = (None, None),
) -> Fields:
    """The fields of a plan that options say: model, chips, and tokens of prompt and answer."""
    found: Fields = {}
    if cfg is not None:
        found |= {"model": name, "model_hash": model_hash(cfg)}
    if piece is not None:
        found |= {"slice": str(piece), "box": list(piece.shape)}
    said = dict(zip(("input_length", "output_length"), lengths, strict=True))
    return found | {key: value for key, value in said.items() if value is not None}
