"""`shardwise roofline`: the document, the table and the refusals."""

import json

import pytest

from shardwise.apps.cli.roofline import roofline
from shardwise.errors import BadRequest

BOOK = ("--on", "v5e", "--matmul", "240x8192x32768")


def run(*args):
    roofline.main(args=list(args), standalone_mode=False)


def result_of(capsys, *args):
    run(*args, "--json")
    return json.loads(capsys.readouterr().out)


def test_the_document(capsys):
    doc = result_of(capsys, *BOOK, "--dtype", "int8")
    result = doc["result"]
    assert result["flops"] == 2 * 240 * 8192 * 32768
    assert result["bytes"] == {"read": 270401536, "written": 7864320}
    assert result["bound_by"] == "HBM"
    seconds = result["seconds"]
    assert seconds["lower"] <= seconds["expected"] <= seconds["upper"]
    assert seconds["lower"] == max(result["math_seconds"], result["comms_seconds"])
    assert result["sum_at_peak_seconds"] == result["math_seconds"] + result["comms_seconds"]
    assert doc["resolved"]["chip"] == {"value": "v5e", "origin": "--on"}
    assert doc["provenance"]["hbm_bandwidth"]["source"]
    assert doc["provenance"]["efficiency.matmul"]["source"]


def test_int8_weights_halve_the_critical_batch(capsys):
    plain = result_of(capsys, *BOOK)["result"]["critical_batch"]
    quantised = result_of(capsys, *BOOK, "--weights", "int8")["result"]["critical_batch"]
    assert quantised["approximation"] == plain["approximation"] / 2
    assert quantised["first"] < plain["first"]


def test_constants_of_the_book_and_overrides(capsys):
    own = ("--set", "chip.hbm_bandwidth=8.2e11", "--set", "chip.peak_flops.bf16=1.97e14")
    doc = result_of(capsys, *BOOK, *own)
    assert doc["result"]["critical_intensity"] == pytest.approx(1.97e14 / 8.2e11)
    assert "--set" in doc["provenance"]["hbm_bandwidth"]["source"]


def test_the_table(capsys):
    run(*BOOK, "--weights", "int8")
    out = capsys.readouterr().out
    assert out.startswith("bf16[240, 8192] x int8[8192, 32768] -> bf16[240, 32768] on v5e")
    for row in ("T_math", "T_comms", "lower", "expected", "upper", "critical batch", "bound by"):
        assert row in out


def test_small_matrices_never_reach_the_peak(capsys):
    doc = result_of(capsys, "--on", "v5e", "--matmul", "64x256x256")
    assert doc["result"]["critical_batch"]["first"] is None
    assert doc["notes"] == [
        "no batch reaches the peak: K and N are too small for the critical intensity"
    ]
    run("--on", "v5e", "--matmul", "64x256x256")
    shown = capsys.readouterr()
    assert "none" in shown.out
    assert "no batch reaches the peak" in shown.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--on", "v5f", "--matmul", "1x2x3"), "unknown chip 'v5f'; did you mean"),
        (("--on", "v5e", "--matmul", "1x2"), "matmul '1x2' cannot be read; write three whole"),
        (("--on", "v5e", "--matmul", "0x2x3"), "matmul '0x2x3' cannot be read; write three"),
        (("--on", "v5e", "--matmul", "1x-2x3"), "matmul '1x-2x3' cannot be read"),
        ((*BOOK, "--dtype", "bf61"), "unknown dtype 'bf61'; did you mean 'bf16'"),
        ((*BOOK, "--dtype", "fp4"), "chip 'v5e' has no peak for dtype 'fp4'"),
    ],
)
def test_refusals(args, message):
    with pytest.raises(BadRequest, match=message) as caught:
        run(*args)
    assert caught.value.exit_code == 2


def test_the_books_critical_batch_of_an_h100(capsys):
    """Ch. 12, quiz 1: 990e12 / 3.35e12 = 295 (.52); the table rounds to 3.4e12."""
    doc = result_of(capsys, "--on", "h100", "--matmul", "240x8192x32768", "--constants", "book")
    assert doc["result"]["critical_intensity"] == pytest.approx(295.522, abs=1e-3)
    assert doc["result"]["critical_batch"]["approximation"] == pytest.approx(295.522, abs=1e-3)


def test_sizes_of_thousands_of_digits_are_refused():
    with pytest.raises(BadRequest, match=r"matmul '9{10,}\.\.\.' cannot be read; write three"):
        roofline.main(args=["--on", "v5e", "--matmul", f"{'9' * 5000}x1x1"], standalone_mode=False)


# Levels, batches and pictures ---------------------------------------------------------------------


def test_operands_in_vmem_need_a_twentieth_of_the_batch(capsys):
    """Its bandwidth is about 22 times that of HBM (ch. 2.1)."""
    hbm, vmem = (
        result_of(capsys, *BOOK, "--level", level, "--constants", "book")["result"]
        for level in ("hbm", "vmem")
    )
    assert vmem["critical_intensity"] == pytest.approx(hbm["critical_intensity"] / 22, rel=2e-3)
    assert (hbm["bound_by"], vmem["bound_by"]) == ("HBM", "math")
    assert vmem["critical_batch"]["first"] < hbm["critical_batch"]["first"] / 20


def test_operands_behind_pcie(capsys):
    """Exercise 2.3: a v6e is bound by math from about 61,000 tokens on, fed at 1.5e10 bytes/s."""
    own = ("--set", "chip.host_link_oneway=1.5e10", "--constants", "book")
    sizes = ("--on", "v6e", "--matmul", "1x16384x65536")
    found = result_of(capsys, *sizes, "--level", "pcie", *own)["result"]
    assert found["critical_batch"]["approximation"] == pytest.approx(61333, rel=1e-4)
    assert found["bound_by"] == "host link"
    assert found["critical_batch"]["first"] is None


def test_small_products_from_the_next_chip_wait_for_a_hop(capsys):
    sizes = ("--on", "v5e", "--matmul", "8x64x64", "--level", "ici")
    sizes += ("--constants", "book")
    found = result_of(capsys, *sizes)["result"]
    assert found["bound_by"] == "latency"
    assert found["seconds"]["lower"] == found["latency_seconds"] == 1e-6
    run(*sizes)
    assert "one hop; below 45 kB it binds" in capsys.readouterr().out


def test_several_batches_are_rows(capsys, tmp_path):
    files = [tmp_path / "a.csv", tmp_path / "a.png"]
    asked = (*BOOK, "--batch", "1:4096:13")
    rows = result_of(capsys, *asked)["result"]["rows"]
    assert [row["m"] for row in rows] == [1 << k for k in range(13)]
    alone = result_of(capsys, "--on", "v5e", "--matmul", "256x8192x32768")["result"]
    assert {k: rows[8][k] for k in ("flops", "seconds", "bound_by")} == {
        k: alone[k] for k in ("flops", "seconds", "bound_by")
    }
    run(*asked, "--csv", str(files[0]), "--plot", str(files[1]))
    out = capsys.readouterr().out
    assert "M = 250 (rule of thumb 241)" in out
    assert len(files[0].read_text().splitlines()) == 14
    assert files[1].stat().st_size > 5000


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--level", "disk"), "unknown memory level 'disk'"),
        (("--batch", "1:8"), "--batch is '1:8'; it is FIRST:LAST:POINTS"),
        (("--batch", "8:1:3"), "LAST must be above FIRST"),
        (("--batch", "0,4"), "--batch"),
        (("--level", "l2"), "chip 'v5e' has no 'l2_bandwidth'"),
    ],
)
def test_refusals_of_levels_and_batches(args, message):
    with pytest.raises(BadRequest, match=message):
        run(*BOOK, *args)


# A time that was measured -------------------------------------------------------------------------

H100 = ("--on", "h100", "--matmul", "8192x8192x8192")


def test_a_measured_product_has_its_share_of_the_roofline(capsys):
    """2 x 8192^3 FLOPs take 1.11 ms at 989 TFLOP/s, 1.4 ms are 79 % of that."""
    found = result_of(capsys, *H100, "--measured", "1.4ms")["result"]["measured"]
    assert found["of_roofline"] == pytest.approx(2 * 8192**3 / 989e12 / 1.4e-3)
    assert found["flops_per_second"] == pytest.approx(2 * 8192**3 / 1.4e-3)
    assert found["good_constant"] == "efficiency.matmul"
    assert found["good_basis"] == "measured"
    assert found["of_roofline"] / found["of_good"] == pytest.approx(found["good_of_roofline"])
    run(*H100, "--measured", "1.4ms")
    out = capsys.readouterr().out
    assert "of the roofline             79 %" in out
    assert "81 % of the roofline; efficiency.matmul 0.812, measured" in out


def test_a_time_above_the_roofline_is_an_error_of_measurement(capsys):
    doc = result_of(capsys, *H100, "--measured", "1.4us")
    assert doc["result"]["measured"]["of_roofline"] is None
    assert "794 times faster than the roofline allows" in doc["warnings"][0]
    small = ("--on", "h100", "--matmul", "16x4096x4096", "--measured", "4us")
    assert "bytes that stay in the chip's cache" in result_of(capsys, *small)["warnings"][0]
    boost = result_of(capsys, *H100, "--measured", "1.08ms")
    assert "a clock above the one behind the peak" in boost["warnings"][0]


def test_a_small_product_takes_the_start_of_its_kernel(capsys):
    small = ("--on", "h100", "--matmul", "512x512x512", "--measured", "6us")
    found = result_of(capsys, *small)["result"]["measured"]
    assert found["good_constant"] == "efficiency.matmul_ramp"
    assert found["good_of_roofline"] < 0.2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--measured", "4"), "--measured '4' is not a number with a unit"),
        (("--measured", "4ms", "--batch", "1,2"), "--measured is the time of one product; leave"),
    ],
)
def test_refusals_of_measured_times(args, message):
    with pytest.raises(BadRequest, match=message):
        run(*H100, *args)


# Attention, collectives and copies ----------------------------------------------------------------


def test_attention_reaches_a_share_of_the_best_kernel(capsys):
    """Causal: 4 B N H FLOPs for each of T (T + 1) / 2 pairs; the paper's kernel reaches 0.75."""
    asked = ("--on", "h100", "--attention", "8x4096x4096x32x8x128", "--measured", "2ms")
    found = result_of(capsys, *asked, "--causal")["result"]
    assert found["flops"] == 4 * 8 * 32 * 128 * 4096 * 4097 / 2
    assert found["bytes"] == 2 * 8 * 128 * 4096 * (32 + 8) * 2
    assert (found["bound_by"], found["measured"]["good_basis"]) == ("math", "measured")
    assert found["measured"]["good_of_roofline"] == pytest.approx(0.75, abs=0.01)
    assert found["measured"]["of_roofline"] == pytest.approx(found["flops"] / 989e12 / 2e-3)
    whole = result_of(capsys, *asked)["result"]
    assert whole["flops"] == pytest.approx(2 * found["flops"], rel=1e-3)


def test_attention_of_decode_is_bound_by_the_cache(capsys):
    decode = ("--attention", "8x1x4096x32x8x128", "--measured", "60us")
    for chip, good in (("h100", "efficiency.hbm"), ("v5p", "efficiency.hbm"), ("v3", "")):
        found = result_of(capsys, "--on", chip, *decode)["result"]
        assert found["bound_by"] == "HBM"
        assert good in found["measured"]["good_constant"]
    own = ("--set", "chip.efficiency.attention=0.5", "--attention", "8x4096x4096x32x8x128")
    found = result_of(capsys, "--on", "h100", *own, "--measured", "60ms")["result"]["measured"]
    assert found["good_constant"] == "efficiency.attention"


def test_a_collective_has_its_share_of_the_links(capsys):
    asked = ("--collective", "all-gather=512MiB", "--measured", "2ms", "--on")
    found = result_of(capsys, *asked, "h100:8")["result"]
    least = 2**29 * 7 / 8 / 450e9
    assert found["seconds"]["lower"] == pytest.approx(least)
    assert found["measured"]["of_roofline"] == pytest.approx(least / 2e-3)
    assert found["measured"]["good_constant"] == "efficiency.network"
    nodes = result_of(capsys, *asked, "h100:64")["result"]
    assert nodes["bound_by"] == "data-centre network"
    small = ("--on", "h100:8", "--collective", "all-gather=4KiB", "--measured", "20us")
    assert result_of(capsys, *small)["result"]["bound_by"] == "latency"


def test_a_copy_crosses_hbm_twice_and_a_link_once(capsys):
    copied = ("--on", "h100", "--copy", "1GB", "--measured", "700us")
    doc = result_of(capsys, *copied)
    found = doc["result"]
    assert found["measured"]["of_roofline"] == pytest.approx(2e9 / 3.35e12 / 7e-4)
    assert set(doc["provenance"]) == {"hbm_bandwidth", "efficiency.hbm"}
    over = result_of(capsys, *copied, "--level", "pcie")
    assert over["result"]["bytes"] == 1e9
    assert over["result"]["measured"]["of_good"] is None
    assert "faster than the roofline allows" in over["warnings"][0]
    looped = result_of(capsys, "--on", "h100", "--copy", "10MB", "--measured", "4us")
    assert "bytes that stay in the chip's cache" in looped["warnings"][0]
    run(*copied[:4], "--level", "pcie")
    assert "not measured, so the peak" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "roofline takes one of --matmul, --attention, --collective, --copy; none of them"),
        (("--copy", "1GB", "--matmul", "1x1x1"), "--matmul and --copy given"),
        (("--copy", "1GB", "--weights", "int8"), "--weights has no effect with --copy; it belongs"),
        (("--copy", "1GB", "--plot", "a.png"), "--plot draws a product; give --matmul"),
        (("--attention", "1x2"), "--attention '1x2' cannot be read; write sequences, queries"),
        (("--attention", "1x1x1x3x2x8"), "has 3 heads for 2 of keys; K divides N"),
        (("--attention", "1x4x2x4x2x8", "--causal"), "--causal with 4 queries and 2 keys"),
        (("--collective", "all-gather=1GB"), "slice 'h100' has no shape"),
        (("--collective", "all-gather=1GB", "--on", "h100:1"), "has one device; give two"),
        (("--on", "h100:8", "--collective", "gather=1GB"), "unknown collective 'gather'"),
        (("--on", "h100:8", "--collective", "all-gather"), "--collective ''"),
    ],
)
def test_refusals_of_ops(args, message):
    on = () if "--on" in args else ("--on", "h100")
    with pytest.raises(BadRequest, match=message):
        run(*on, *args)
