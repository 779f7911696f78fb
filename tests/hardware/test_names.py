"""A chip is one file: its names lie in its first paragraph, and no code knows it by name."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.every import over_every
from tests.trees import nodes, trees

from shardwise.errors import BadRequest
from shardwise.hardware import load_chip
from shardwise.hardware.catalogue import GENERATIONS
from shardwise.hardware.names import (
    DATA,
    aliases,
    chip_names,
    compiled,
    exported,
    generations,
    own_names,
)

FILES = sorted(DATA.glob("*.toml"))
PLATFORMS = {"cpu"}
"""Also a name of JAX's for all devices of a kind, which code may ask for."""


@over_every(FILES, lambda path: path.stem)
def test_the_names_of_a_chip_lie_in_its_first_paragraph(path):
    record = tomllib.loads(path.read_text(encoding="utf-8"))
    assert record["id"] == path.stem
    assert own_names(path.stem) == {
        key: record[key]
        for key in ("aliases", "cloud", "compiler", "exports", "generation")
        if key in record
    }


def test_every_generation_has_its_file_and_its_chips():
    assert set(generations()) == {path.stem for path in GENERATIONS.glob("*.toml")}


def test_chips_are_listed_by_vendor_and_release():
    order = chip_names()
    assert len(order) == len(FILES)
    assert order.index("v5e") < order.index("v6e") < order.index("h100") < order.index("b200")
    assert order.index("b200") < order.index("mi300x") < order.index("trn2")


def test_names_of_other_programs():
    assert exported("skypilot")["a100-40gb"] == "A100"
    assert exported("nothing") == {}
    assert {"v5e", "h100"} < set(compiled())
    assert "mi300x" not in compiled()


def test_one_chip_reads_its_own_files_only():
    code = (
        "import sys, shardwise\n"
        "from shardwise.hardware import parse_slice\n"
        "seen = []\n"
        "def hear(event, what):\n"
        "    if event == 'open' and '.toml' in str(what[0]): seen.append(str(what[0]))\n"
        "sys.addaudithook(hear)\n"
        "parse_slice('h100:8')\n"
        "print(*seen, sep='\\n')\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seen = [str(Path(line).relative_to(DATA)) for line in said.stdout.split()]
    assert seen == ["h100.toml", str(Path("generations") / "hopper.toml")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('aliases = "x"', "'aliases' in hardware file .* must be a list of names"),
        ('generation = "hoper"', "unknown generation of chip 'lab' 'hoper'; did you mean 'hopper'"),
        ("generation = 3", "unknown generation of chip 'lab' '3'"),
        ("compiler = 3", "'compiler' of chip 'lab' is 3; it must be a table"),
        ('compiler = {platform = "gpu", name = "x"}', "unknown platform in 'compiler'"),
        ('compiler = {platform = "tpu", name = 3}', "'name' in 'compiler' of chip 'lab' is 3"),
        ('compiler = {platform = "tpu", name = "x", no = ""}', "unknown key of 'compiler'"),
        ('generation = "hopper"\nefficiency = 3', "'efficiency' of chip 'lab' is 3; it must be"),
    ],
)
def test_names_that_a_hardware_file_gets_wrong(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(f'id = "lab"\nbase = "h100"\n{text}\n')
    with pytest.raises(BadRequest, match=message):
        load_chip("lab", hw_files=[path])


@pytest.mark.parametrize("constants", ["vendor", "book"])
@pytest.mark.parametrize("chip_id", ["v5e", "h100", "mi350x"])
def test_a_file_of_the_catalogue_is_a_hardware_file(chip_id, constants):
    given = load_chip(chip_id, constants=constants, hw_files=[DATA / f"{chip_id}.toml"])
    assert given == load_chip(chip_id, constants=constants)


def test_a_new_chip_can_be_tried_before_it_lies_in_the_catalogue(tmp_path):
    text = (DATA / "v6e.toml").read_text(encoding="utf-8")
    text = text.replace('id = "v6e"', 'id = "v9z"').replace('"trillium"', '"zeta"')
    text = text.replace('generation = "v6e"', 'generation = "v5p"')
    path = tmp_path / "v9z.toml"
    path.write_text(text)
    chip = load_chip("Zeta", hw_files=[path])
    assert (chip.id, chip.generation) == ("v9z", "v5p")
    assert chip.efficiency.sustained == load_chip("v5p").efficiency.sustained
    assert chip.efficiency.matmul == load_chip("v6e").efficiency.matmul
    assert chip.compiler == load_chip("v6e").compiler


def test_a_chip_without_runs_has_what_its_vendors_chips_let_expect():
    others = tomllib.loads((GENERATIONS / "others.toml").read_text(encoding="utf-8"))
    vendors = others.pop("vendors")
    for chip_id, table in (("v2", vendors["google"]), ("l4", vendors["nvidia"]), ("trn2", others)):
        chip = load_chip(chip_id)
        assert chip.generation == "others"
        assert chip.efficiency.sustained == table["sustained"]["value"]
        assert chip.sources["efficiency.sustained"] == table["sustained"]["source"]


def test_a_chip_made_from_another_has_no_names_of_it(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('id = "lab"\nbase = "h100"\n')
    chip = load_chip("lab", hw_files=[path])
    assert (chip.generation, chip.compiler) == ("", None)
    assert chip.efficiency == load_chip("h100").efficiency
    path.write_text('id = "H100"\nbase = "h200"\n')
    same = load_chip("h100", hw_files=[path])
    assert same.compiler == load_chip("h100").compiler
    assert same.hbm_bytes == load_chip("h200").hbm_bytes


def test_no_code_knows_a_chip_by_name():
    """Chips differ by what their files say: no comparison, `in`, `match` or table has a name."""
    found = []
    for file in trees():
        for node in nodes(file):
            found += [f"{file}:{line}: {name}" for name, line in chips_in(node)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        'chip.id == "h100"',
        'chip.id in ("x", "V5E")',
        '"tpu v5 lite" in kind',
        'name.startswith("v5litepod")',
        'match chip:\n    case "a100" | "h100":\n        pass',
        'PEAK = {"h100": 1, "b200": 2}',
        'CHIPS = ("v4", "v5e")',
    ],
)
def test_a_name_in_code_is_found(code):
    assert [name for node in ast.walk(ast.parse(code)) for name in chips_in(node)]


def test_slices_and_other_words_are_no_names():
    code = 'where = {"cpu": 1, "v5e:2x4": 2}; parse_slice("v5e:2x4"); load("h100"); x == "cpu"'
    assert not [name for node in ast.walk(ast.parse(code)) for name in chips_in(node)]


def chips_in(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Names of chips that a comparison, a pattern or a table holds, with their lines."""
    match node:
        case ast.Compare(left=left, comparators=right):
            held = [left, *right]
        case ast.MatchValue(value=value):
            held = [value]
        case ast.Dict(keys=keys):
            held = [key for key in keys if key is not None]
        case ast.Tuple(elts=held) | ast.List(elts=held) | ast.Set(elts=held):
            pass
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith"), args=held):
            pass
        case _:
            return
    for part in held:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            name = part.value.lower()
            if name in aliases() and name not in PLATFORMS:
                yield part.value, part.lineno
