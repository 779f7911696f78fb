"""One name, one meaning: the table of options, its page, the groups of --help."""

import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import click
import pytest
from tests.apps.commands import refused, run

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import options  # noqa: E402

from shardwise.apps.cli.options import (  # noqa: E402
    GROUPS,
    FieldOption,
    read,
    row_of,
    table,
)
from shardwise.boundary import command_of  # noqa: E402
from shardwise.boundary import options as asked  # noqa: E402
from shardwise.commands.base.inputs import compiler_options  # noqa: E402
from shardwise.errors import BadRequest  # noqa: E402
from shardwise.planner.export import EXPORTERS  # noqa: E402
from shardwise.planner.export.serving import SERVE_EXPORTERS  # noqa: E402
from shardwise.plans.serve import ENGINE_CACHES, ENGINE_WEIGHTS  # noqa: E402

COMMANDS = dict(options.commands())
SILENT = ("plan schema", "schema", "serve", "ui", "generate", "chat")
"""Commands that print no answer of which there could be more or less."""
HEAVY = ("numpy", "pydantic", "jax", "scipy", "yaml", "rich")


def test_every_option_is_a_field_with_a_group_and_one_meaning():
    for path, command in COMMANDS.items():
        for param in command.params:
            if isinstance(param, click.Option):
                assert isinstance(param, FieldOption), f"{path} {param.opts}"
                row = row_of(param)
                assert row.group in GROUPS, f"say the group of {path} {param.opts} in the field"
                assert row.sentence.endswith("."), f"{path} {param.opts} has no meaning"


def test_the_page_has_every_option_once_with_the_commands_that_take_it():
    rows = [line.split(" | ") for line in options.page().splitlines() if line.startswith("| `")]
    names = [row[0] for row in rows]
    assert len(names) == len(set(names))
    assert set(names) == {
        f"| `{max(param.opts, key=len)}`"
        for command in COMMANDS.values()
        for param in command.params
        if isinstance(param, click.Option)
    }
    assert ["| `--find-rate`", "Look for the largest rate that a plan holds.", "simulate |"] in rows


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_takes_the_last_of_two_values(capsys, command):
    context = click.Context(COMMANDS[command])
    for option in COMMANDS[command].get_params(context):
        if not isinstance(option, click.Option) or option.multiple or option.count:
            continue
        first, second = [option.opts[0], "1"], [option.opts[-1], "2"]
        if option.is_flag:
            if not option.secondary_opts:
                continue
            first, second = option.opts[:1], option.secondary_opts[:1]
        message = refused(capsys, [*command.split(), *first, *second])
        assert message.startswith(f"{option.opts[0]} is given ")
        assert message.endswith("; leave one of them out")


def test_one_value_may_be_given_twice(capsys):
    code, out, _ = run(capsys, "hw", "list", "--constants", "book", "--json", "--constants=book")
    assert code == 0
    assert '"schema_version"' in out


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("plan train --model llama-3-8b --on h100:8 --batch 8seq --seq 512 --price", "h100"),
        ("plan serve --model llama-3-8b --on h100:1 --input 8 --output 8 --price", "h100"),
        ("hw show h100 --price", "h100"),
        ("hw show h100 --set", "hbm_bandwidth"),
        ("roofline --on h100 --matmul 8x8x8 --set", "hbm_bandwidth"),
        ("plan show plan.yaml --set", "remat"),
        ("simulate plan.yaml --rate 1 --set", "replicas"),
        ("book rule mixed_limit --set", "d_ff"),
        ("book figure hbm --set", "chips"),
    ],
)
def test_no_name_takes_the_last_of_two_values(capsys, line, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(
        "model: llama-3-8b\nslice: h100:8\nmesh: {fsdp: 8}\nbatch: 8seq\nseq: 512\n"
        if "simulate" not in line
        else "model: llama-3-8b\nslice: h100:1\ninput: 8\noutput: 8\n"
    )
    *words, flag = line.split()
    words = [*words, flag, f"{named}=1", flag, f"{named}=2"]
    assert f"{flag} gives '{named}' two values, " in refused(capsys, words)


def test_no_option_of_a_compiler_takes_the_last_of_two_values():
    with pytest.raises(BadRequest, match="--option gives 'xla_a' two values, '1' and '2'"):
        compiler_options(["xla_a=1", "--xla_a=2"])


def test_other_spellings_of_a_name_are_the_same_name(capsys):
    words = ["hw", "show", "tpu7x", "--price", "tpu7x=1", "--price", "ironwood=2"]
    assert "--price gives 'tpu7x' two values" in refused(capsys, words)
    words = ["hw", "show", "v5e", "--set", "clock_hz=1e9", "--set", "chip.clock_hz=2e9"]
    assert "--set gives 'clock_hz' two values" in refused(capsys, words)


def test_the_data_is_that_of_the_requests():
    assert options.DATA.read_text() == options.data(), "run scripts/options.py"
    assert set(read()) <= set(COMMANDS)


def test_a_field_is_an_option_of_help_and_of_the_page():
    """One new field of a request is all that a new option is."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class More(options.requests()["plan train"]):
        dose: int | None = asked.option(
            "Doses of it.", kind="whole", group="Targets", meaning="how many doses"
        )

    param = FieldOption("dose", asked.options_of(More)["dose"])
    assert param.opts == ["--dose"]
    shown = param.get_help_record(click.Context(click.Command("more")))
    assert shown == ("--dose INTEGER", "Doses of it.")
    assert command_of(More(model="m", on="o", batch="1", seq="2", dose=3)).endswith(" --dose 3")


@pytest.mark.parametrize("command", options.requests())
def test_every_field_of_a_request_is_a_parameter_of_its_command(command):
    request = options.requests()[command]
    taken = {param.name for param in COMMANDS[command].params}
    assert {one.name for one in fields(request)} == set(asked.options_of(request))
    assert set(asked.options_of(request)) <= taken


def test_a_flag_means_one_thing_in_one_group():
    said: dict[str, tuple[str, str]] = {}
    for request in options.requests().values():
        for name, row in asked.options_of(request).items():
            flag = asked.flagged(name, row)
            if row.group and not row.place:
                assert said.setdefault(flag, (row.group, row.sentence)) == (row.group, row.sentence)
            assert row.place or flag in table(), f"{flag} says no group"


NAMES = {
    (command, asked.flagged(name, row)): "|".join(row.values)
    for command in ("plan train", "serve")
    for name, row in read()[command].items()
    if row.values
} | {
    ("serve", "--weights"): "|".join(ENGINE_WEIGHTS),
    ("serve", "--kv"): "|".join(ENGINE_CACHES),
}


@pytest.mark.parametrize(("command", "flag"), NAMES)
def test_help_shows_the_names_of_rows(capsys, command, flag):
    _, out, _ = run(capsys, *command.split(), "--help")
    assert f"{flag}{NAMES[command, flag]}" in "".join(out.split()).replace("[", "")


def test_help_is_grouped(capsys):
    code, out, _ = run(capsys, "plan", "train", "--help")
    assert code == 0
    heads = [line[:-1] for line in out.splitlines() if line.endswith(":") and line[0] != " "]
    wanted = [g for g in GROUPS if g not in ("Training", "The load", "A server")]
    assert heads == [*wanted, "Options"]


HELP = """
import sys
from shardwise.apps.cli import main

for path in {paths!r}:
    print("#", path, flush=True)
    try:
        main([*path.split(), "--help"])
    except SystemExit:
        pass
    heavy = [name for name in {heavy!r} if name in sys.modules]
    assert not heavy, (path, heavy)
"""


def test_help_imports_nothing_heavy():
    """Of any command, one after the other in one process, which has imported nothing but them."""
    code = HELP.format(paths=list(COMMANDS), heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = dict(part.split("\n", 1) for part in f"\n{done.stdout}".split("\n# ")[1:])
    assert list(pages) == list(COMMANDS)
    for path, page in pages.items():
        assert "Level of detail:" in page or path in SILENT, path


def test_the_targets_of_an_export_are_named_in_its_help():
    said = COMMANDS["export"].help or ""
    assert all(name in said for name in (*EXPORTERS, *SERVE_EXPORTERS))


def test_names_of_rows_complete(capsys):
    command = COMMANDS["plan train"]
    (remat,) = [p for p in command.params if p.name == "remat"]
    found = remat.type.shell_complete(click.Context(command), remat, "bl")
    assert [item.value for item in found] == ["block"]
