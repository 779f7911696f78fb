"""Each op says how far it is from its roofline and what its rate rests on."""

import pytest

import shardwise as sw
from shardwise.commands.base.inputs import Hardware
from shardwise.errors import BadRequest
from shardwise.roofline.rests import limit, roofline_share


@pytest.fixture(scope="module")
def shown():
    return sw.plan_show("audit:megatron-16b")


def test_an_op_at_the_peak_of_its_busiest_resource_is_all_of_its_roofline(shown):
    book, chip = sw.plan_show("audit:megatron-16b", constants="book"), shown.best.piece.chip
    assert all(0 < roofline_share(t, chip) <= 1 for t in shown.best.estimate.ops if float(t.total))
    products = [t for t in book.best.estimate.ops if t.op.matmul is not None]
    chip = book.best.piece.chip
    assert all(roofline_share(t, chip) == pytest.approx(1, rel=0.02) for t in products)
    (row, *_) = book.result["top_ops"]
    assert {rest["basis"] for rest in row["rests_on"]} == {"book's peak"}


def test_a_rate_rests_on_the_constants_of_its_slowest_resource(shown):
    """Large products on H100: a measured kernel, and what long runs were fitted to keep of it."""
    chip = shown.best.piece.chip
    row = next(t for t in shown.result["top_ops"] if t["name"] == "mlp.down")
    assert row["limited_by"] == "math"
    rests = {rest["constant"]: rest for rest in row["rests_on"]}
    assert rests["efficiency.matmul"]["value"] == chip.efficiency.matmul
    assert rests["efficiency.matmul"]["basis"] == "measured"
    assert rests["efficiency.sustained"]["basis"] == "fitted"
    assert rests["efficiency.matmul"]["source"] == chip.sources["efficiency.matmul"]
    # Nothing else takes its time: the share is the product of these, but for ramp and launch.
    share = chip.efficiency.matmul * chip.efficiency.sustained
    assert share - 0.06 < row["roofline_share"] < share
    sends = [t for t in shown.result["top_ops"] if t["stream"].startswith("net:")]
    assert {r["constant"] for t in sends for r in t["rests_on"]} <= {
        "efficiency.network", "efficiency.outer_network", "stack.sums", "stack.exchanges",
        "stack.launch_seconds",
    }  # fmt: skip


def test_the_table_of_ops_says_both(shown):
    detail = "\n".join(map(str, shown.sections()["detail"]))
    assert "of roofline" in detail
    assert "measured x fitted" in detail
    assert "efficiency.matmul 0.812 measured" in " ".join(detail.split())


def test_every_op_has_a_limit_and_a_share(shown):
    for t in shown.best.estimate.ops:
        assert limit(t)
        assert 0 <= roofline_share(t, shown.best.piece.chip) <= 1 + 1e-9


def test_what_stays_wide_in_a_narrow_recipe_is_named():
    """The shares of all dtypes are one; attention's core, the head and the router stay in bf16."""
    found = sw.plan_train("mixtral-8x7b", "b200:8", batch="64seq", seq=2048, dtype="nvfp4",
                          remat="block", pins={"expert": 8})  # fmt: skip
    rows = {row["dtype"]: row for row in found.result["math_dtypes"]}
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    assert rows["bf16"]["components"] == ["attention_core", "lm_head", "router"]
    assert "routed_experts" in rows["nvfp4"]["components"]
    detail = " ".join("\n".join(map(str, found.sections()["detail"])).split())
    assert "in bf16: attention_core, lm_head, router" in detail
    assert "of the nvfp4 peak" in " ".join(str(found).split())


def test_what_kind_of_number_a_constant_is_is_said_beside_it(tmp_path):
    """A source's words say nothing of it, and a word that is none is refused."""
    file = tmp_path / "mine.toml"
    entry = '[efficiency]\nmatmul = { value = 0.7, source = "measured: once", basis = "BASIS" }\n'
    for basis in ("assumed", "guessed"):
        file.write_text('id = "mine"\nbase = "h100"\n' + entry.replace("BASIS", basis))
        if basis == "assumed":
            assert Hardware(files=[str(file)]).chip("mine").bases["efficiency.matmul"] == basis
        else:
            with pytest.raises(BadRequest, match="unknown basis of 'efficiency"):
                Hardware(files=[str(file)]).chip("mine")
    chip = Hardware(overrides=["chip.efficiency.matmul=0.7"]).chip("h100")
    assert "efficiency.matmul" not in chip.bases
