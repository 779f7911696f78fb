"""The catalogue: every chip loads in both constants, every number has a source, overrides work."""

import pytest
from tests.every import over_every
from tests.work import calls

from shardwise.errors import BadRequest
from shardwise.hardware import Alone, FullMesh, Switched, Torus, catalogue, chip_ids, load_chip
from shardwise.hardware.catalogue import aliases, resolve_chip
from shardwise.hardware.totals import fat_tree, node_egress

CHIPS = [chip for constants in ("vendor", "book") for chip in catalogue(constants)]


@over_every(CHIPS, lambda chip: f"{chip.id}-{chip.constants}")
def test_every_number_has_a_source(chip):
    for path in chip.numbers():
        source = chip.sources[path]
        assert len(source) > 8, f"{chip.id} {path}: '{source}'"
        assert source != "no source given"
        assert source.split(";")[0] not in ("vendor", "jax", "ptx", "book2", "book12")


@over_every(CHIPS, lambda chip: f"{chip.id}-{chip.constants}")
def test_numbers_are_sane(chip):
    assert chip.peak_flops
    assert all(1e12 < rate < 1e17 for rate in chip.peak_flops.values())
    assert 1e11 < chip.require("hbm_bandwidth") < 2e13
    assert 8e9 <= chip.require("hbm_bytes") < 1e12
    for part in (chip.efficiency.matmul, chip.efficiency.hbm, chip.efficiency.network):
        assert 0.3 < part <= 1
    if chip.hbm_usable_bytes is not None and chip.id != "v5p":
        assert 0.9 * chip.hbm_bytes < chip.hbm_usable_bytes <= chip.hbm_bytes


@over_every(CHIPS, lambda chip: f"{chip.id}-{chip.constants}")
def test_a_switched_chips_levels_agree_with_its_links(chip):
    network = chip.network
    if not isinstance(network, Switched):
        return
    assert network.chip_oneway == network.link_oneway * network.links_per_chip
    levels = fat_tree(chip)
    if levels:
        assert levels[0].chips == network.domain
        assert levels[0].chip_oneway == network.chip_oneway
        assert levels[0].switch_oneway >= levels[0].cable_oneway
    for level in levels[1:]:
        assert level.collective_oneway == node_egress(chip)


def test_kinds_of_network():
    kinds = {chip.id: type(chip.network) for chip in catalogue()}
    assert kinds["v5p"] is kinds["trn2"] is Torus
    assert kinds["h100"] is kinds["gb200"] is Switched
    assert kinds["mi300x"] is kinds["gaudi3"] is FullMesh
    assert kinds["ascend910b2"] is kinds["ascend910b3"] is FullMesh
    assert kinds["gh200"] is kinds["cpu"] is Alone
    assert kinds["l4"] is Switched
    assert load_chip("mi300x").network.pair_oneway == 6.4e10
    assert load_chip("gb200").network.domain == 72


def test_the_constants_of_the_book_and_of_the_vendor():
    vendor, book = load_chip("v5p"), load_chip("v5p", constants="book")
    assert (vendor.network.link_oneway, book.network.link_oneway) == (1e11, 9e10)
    assert (vendor.hbm_bandwidth, book.hbm_bandwidth) == (2.765e12, 2.8e12)
    assert "ch. 2" in book.sources["hbm_bandwidth"]
    assert "docs.cloud.google.com" in vendor.sources["hbm_bandwidth"]
    assert book.efficiency.matmul == 1.0
    assert "int8" not in load_chip("v3").peak_flops
    assert load_chip("v3", constants="book").peak("int8") == 1.4e14


def test_the_books_numbers_of_2026():
    """Ch. 2 (table, TPU7x), ch. 7 (host of a v5e) and ch. 12 (quiz 1 and H800), 13 Jul 2026."""
    ironwood = load_chip("tpu7x", constants="book")
    assert (ironwood.hbm_bytes, ironwood.hbm_usable_bytes) == (192e9, 192e9)
    assert ironwood.hbm_bandwidth == 7.4e12
    assert (ironwood.peak("bf16"), ironwood.peak("int8")) == (2.3e15, 4.61e15)
    assert "int8" not in load_chip("tpu7x").peak_flops
    h800 = load_chip("h800", constants="book")
    assert (h800.network.chip_oneway, h800.peak("bf16")) == (300e9, 9.9e14)
    assert h800.peak("bf16") / h800.network.chip_oneway == 3300
    assert load_chip("h800").network.chip_oneway == 200e9
    v5e = load_chip("v5e", constants="book")
    assert v5e.host_dram_bytes == 450 * 2**30
    assert "ch. 7" in v5e.sources["host_dram_bytes"]
    assert load_chip("h100", constants="book").hbm_bandwidth == 3.35e12


def test_loading_one_chip_is_quick():
    load_chip("v5e")  # imports, once
    assert calls(lambda: load_chip("b300", set_=["hbm_bandwidth=1e12"])) < 10_000


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("TPU v5", "v5p"),
        ("TPU v5 lite", "v5e"),
        ("v5litepod", "v5e"),
        ("tpu-v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("Trillium", "v6e"),
        ("v7x", "tpu7x"),
        ("Ironwood", "tpu7x"),
        ("TPU7x", "tpu7x"),
        ("v4p", "v4"),
        ("H100-SXM", "h100"),
        ("a100-80gb", "a100"),
        ("A100-SXM-80GB", "a100"),
        ("GB200 NVL72", "gb200"),
        ("h100_sxm", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("a100_40gb", "a100-40gb"),
        ("a100-sxm4-40gb", "a100-40gb"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("A800 80GB PCIe", "a800-pcie"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("RTX A6000", "a6000"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Ascend910B2", "ascend910b2"),
        ("Ascend 910B", "ascend910b3"),
        ("910C", "ascend910c"),
    ],
)
def test_aliases(name, chip):
    assert resolve_chip(name) == chip


def test_an_alias_names_one_chip():
    assert set(aliases().values()) == set(chip_ids())
    assert all(aliases()[chip] == chip for chip in chip_ids())


@pytest.mark.parametrize("name", ["a10", "h", "v5", "tpu"])
def test_no_match_by_part_of_a_name(name):
    with pytest.raises(BadRequest, match=f"unknown chip '{name}'"):
        load_chip(name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chip.hbm_bandwith=3", "unknown chip field 'hbm_bandwith'; did you mean 'hbm_bandwidth'"),
        (
            "hbm_bandwidth=-3",
            "'hbm_bandwidth' of chip 'h100' is -3.0; it must be a positive number",
        ),
        ("hbm_bandwidth=nan", "is 'nan'; it must be a number"),
        ("hbm_bandwidth=fast", "is 'fast'; it must be a number such as 3e12"),
        ("hbm_bytes=80GX", "is '80GX'; it must be a number such as 3e12 or 16GiB"),
        ("peak_flops.bf17=1e12", "did you mean 'bf16'"),
        ("efficiency.matmul=1.2", "must be a positive number of at most 1"),
        ("efficiency.mamul=0.5", "unknown efficiency of chip 'h100' 'mamul'"),
        ("cores=1.5", "'cores' of chip 'h100' is 1.5; it must be a whole number"),
        ("matmul_tile=4x4", "must be three sizes, m x k x n"),
        ("network.pod=4x4", "unknown field of 'network' of chip 'h100' 'pod'"),
        ("network.sharp=maybe", "must be true or false"),
        ("network.kind=torus", "changed in a --hw file only"),
        ("hbm_bandwidth", "is not PATH=VALUE"),
        ("hbm_bandwidth.x=3", "is not a number of a chip"),
    ],
)
def test_bad_overrides(text, message):
    with pytest.raises(BadRequest) as error:
        load_chip("h100", set_=[text])
    assert message in str(error.value)


def test_overrides_say_where_they_come_from():
    chip = load_chip("v5e", set_=["chip.hbm_bandwidth=9e11", "network.pod=8x8", "hbm_bytes=32GiB"])
    assert chip.hbm_bandwidth == 9e11
    assert chip.network.pod == (8, 8)
    assert chip.sources["hbm_bandwidth"] == "--set chip.hbm_bandwidth"
    assert chip.hbm_bytes == 32 * 2**30
    assert chip.hbm_usable_bytes == 31.5 * 2**30


def test_a_file_overrides_a_chip_and_adds_one(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('id = "h100"\nhbm_bandwidth = 3e12\n[network]\nsharp = false\n')
    new = tmp_path / "new.yaml"
    new.write_text("id: h100x\nbase: h100\nname: Lab H100\npeak_flops: {bf16: 8.0e+14}\n")
    files = [mine, new]
    chip = load_chip("h100-sxm", hw_files=files)
    assert (chip.hbm_bandwidth, chip.network.sharp) == (3e12, False)
    assert chip.network.domain == 8
    assert chip.sources["hbm_bandwidth"] == str(mine)
    added = load_chip("h100x", hw_files=files)
    assert (added.name, added.peak("bf16"), added.hbm_bandwidth) == ("Lab H100", 8e14, 3e12)
    assert "h100x" in chip_ids(files)
    assert load_chip("h100").hbm_bandwidth == 3.35e12


def test_a_file_may_change_the_kind_of_network(tmp_path):
    path = tmp_path / "pcie.toml"
    path.write_text('id = "h100"\n[network]\nkind = "alone"\n')
    assert isinstance(load_chip("h100", hw_files=[path]).network, Alone)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hbm_bandwidth = 3e12", "has no 'id'"),
        ('id = "x"\nbase = "h10"', "unknown base in hardware file"),
        ('id = "x"\nname = "X"', "chip 'x' lacks 'network', which every chip must have"),
        ('id = "h100"\nhbm_bandwith = 3', "did you mean 'hbm_bandwidth'"),
        ('id = "h100"\nhbm_bandwidth = "x"', "it must be a number"),
        ('id = "h100"\nhbm_bandwidth = true', "is True; it must be a positive number"),
        ('id = "h100"\nhbm_bandwidth = {valu = 3}', "did you mean 'value'"),
        (
            'id = "h100"\npeak_flops = { value = 2e15, source = "mine" }',
            "'peak_flops' of chip 'h100' is one number; write one for each dtype: peak_flops.bf16",
        ),
        ('id = "h100"\npeak_flops = 3', "'peak_flops' of chip 'h100' is 3; it must be a table"),
        ('id = "h100"\n[network]\nkind = "tors"', "unknown network.kind of chip 'h100' 'tors'"),
        ('id = "h100"\n[network]\nlevels = 3', "must be a list of tables"),
        ('id = "h100"\n[prices]\nprice = 3', "lacks 'usd_per_chip_hour'"),
        ('id = "h100"\n[prices.price]\nusd_per_chip_hour = 3', "lacks 'as_of'"),
        ("id = ", "is not TOML: Invalid value"),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(BadRequest) as error:
        load_chip("x" if text.startswith('id = "x"') else "h100", hw_files=[path])
    assert message in str(error.value)


def test_a_missing_file():
    with pytest.raises(BadRequest, match=r"cannot read hardware file 'none\.toml'"):
        load_chip("h100", hw_files=["none.toml"])


def test_unknown_constants():
    with pytest.raises(BadRequest, match="unknown constants 'boook'; did you mean 'book'"):
        load_chip("h100", constants="boook")


@pytest.mark.parametrize("key", ["link_oneway=5e10", "links_per_chip=9"])
def test_a_switched_chips_links_are_not_priced_and_cannot_be_set(key, tmp_path):
    with pytest.raises(BadRequest, match=r"would change no time.*--set chip\.network\.chip_oneway"):
        load_chip("h100", set_=[f"chip.network.{key}"])
    path = tmp_path / "mine.toml"
    name, value = key.split("=")
    path.write_text(f'id = "lab"\nbase = "h100"\n[network]\n{name} = {value}\n')
    with pytest.raises(BadRequest, match=f"'network.{name}' in hardware file .* no time"):
        load_chip("lab", hw_files=[path])
    path.write_text(path.read_text() + "chip_oneway = 5e11\n")
    assert load_chip("lab", hw_files=[path]).network.chip_oneway == 5e11
    assert load_chip("h100", set_=["network.chip_oneway=5e11"]).network.chip_oneway == 5e11


def test_a_torus_is_priced_by_its_links():
    assert load_chip("v5e", set_=["chip.network.link_oneway=6e10"]).network.link_oneway == 6e10


def test_fp8_products_of_a_chip_without_runs_reach_no_larger_share_than_those_in_bf16():
    """An MI300X was measured in bf16 alone, at half its peak; other chips' fp8 reaches 0.8."""
    slow, usual = load_chip("mi300x").efficiency, load_chip("l40s").efficiency
    assert slow.matmul_rate("fp8") == slow.matmul < 0.5
    assert usual.matmul_rate("fp8") < usual.matmul
    assert "as in bf16" in load_chip("mi300x").sources["efficiency.matmul_fp8"]
