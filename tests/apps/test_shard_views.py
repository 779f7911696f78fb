"""Pictures: what is drawn says who holds what; what is animated is the executor's trace."""

import builtins
import json
import re

import pytest

from shardwise.apps.cli import shard_views
from shardwise.apps.cli.player import write_player
from shardwise.apps.cli.shard_views import animate_terminal, draw, plot
from shardwise.book.simulators.collective import animate
from shardwise.errors import BadRequest, MissingPart
from shardwise.sharding import Layout, Mesh
from shardwise.sharding.simulate import simulate
from shardwise.sharding.simulate.fabric import torus

A = Layout.parse("A[I_XY, J]")
SIZES, MESH = {"I": 8, "J": 4}, Mesh.parse("X=2,Y=2,Z=2")


class TestDraw:
    def test_x_is_the_major_axis(self):
        assert draw(A, SIZES, MESH).splitlines() == [
            "A[I_XY, J] on mesh X=2,Y=2,Z=2: blocks of [2, 4]",
            "  I down, J ->",
            *("    A", "    B", "    C", "    D"),
            "",
            "devices, X by Y by Z",
            *("  Y down, Z ->  (X=0)", "    A A", "    B B"),
            *("  Y down, Z ->  (X=1)", "    C C", "    D D"),
            "every block is on 2 devices",
        ]

    def test_the_other_order(self):
        picture = draw(Layout.parse("A[I_YX, J]"), SIZES, Mesh.parse("X=2,Y=2"))
        assert picture.splitlines()[-2:] == ["    A C", "    B D"]

    def test_partial_sums_are_no_copies(self):
        picture = draw(Layout.parse("A[I_X]{U_Y}"), SIZES, Mesh.parse("X=2,Y=2"))
        assert "partial sums over Y: their sum is the array" in picture
        assert "every block" not in picture

    def test_colours_on_a_terminal(self, monkeypatch):
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        picture = draw(A, SIZES, MESH)
        assert "\x1b[" in picture
        plain = re.sub(r"\x1b\[[0-9;]*m", "", picture)
        assert plain.split() == _plain_words()

    def test_many_blocks_have_two_letters(self):
        picture = draw(Layout.parse("A[I_X]"), {"I": 128}, Mesh.parse("X=128"))
        assert "AA AB" in picture

    def test_too_many_devices(self):
        with pytest.raises(BadRequest, match=r"4,096 devices; at most 1,024 are drawn"):
            draw(Layout.parse("A[I_X]"), {"I": 4096}, Mesh.parse("X=4096"))


def _plain_words():
    from unittest.mock import patch

    with patch("sys.stdout.isatty", lambda: False):
        return draw(A, SIZES, MESH).split()


class TestPlot:
    @pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
    def test_writes_a_picture(self, tmp_path, name, magic):
        pytest.importorskip("matplotlib")
        plot(Layout.parse("A[I_X, J_Y]{U_Z}"), SIZES, MESH, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(magic)

    def test_the_ending_is_the_format(self, tmp_path):
        pytest.importorskip("matplotlib")
        with pytest.raises(BadRequest, match=r"the ending says the format, \.png or \.svg"):
            plot(A, SIZES, MESH, tmp_path / "a.gif")
        with pytest.raises(BadRequest, match="cannot write"):
            plot(A, SIZES, MESH, tmp_path / "no" / "a.png")

    def test_without_matplotlib(self, tmp_path, monkeypatch):
        real = builtins.__import__

        def missing(name, *args, **kwargs):
            if name.startswith("matplotlib"):
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", missing)
        with pytest.raises(MissingPart, match=r"pip install 'shardwise\[plot\]'") as caught:
            plot(A, SIZES, MESH, tmp_path / "a.png")
        assert caught.value.exit_code == 5

    def test_importing_the_module_loads_no_matplotlib(self):
        assert "matplotlib" not in vars(shard_views)


class TestAnimate:
    def test_a_self_contained_page(self, tmp_path):
        trace = simulate("all_gather", torus([4]))
        write_player(animate(trace), tmp_path / "a.html", "--animate")
        page = (tmp_path / "a.html").read_text()
        assert not re.findall(r'(?:src|href)="|@import|fetch\(', page)
        assert set(re.findall(r"https?://[^\"]+", page)) == {"http://www.w3.org/2000/svg"}
        data = json.loads(re.search(r'application/json">(.*?)</script>', page).group(1))
        assert [len(frame["moves"]) for frame in data["frames"]] == [0, 8, 8]
        assert data["curves"][0]["y"] == [0, 8, 12]
        assert set(data["kinds"]) == {"0", "1", "2", "3"}
        assert all(word in page for word in ("Play", "Back", "Step", "Speed"))

    def test_every_kind_and_network(self, tmp_path):
        for kind in ("reduce_scatter", "all_reduce", "all_to_all", "permute"):
            found = animate(simulate(kind, torus([2, 3])))
            write_player(found, tmp_path / f"{kind}.html", "--animate")

    def test_frames_of_text(self):
        frames = list(animate_terminal(simulate("permute", torus([3]))))
        assert frames[0].splitlines()[0] == "permute over 3 of 3 devices"
        assert frames[1].splitlines() == [
            "round 1 of 1",
            "  0 -> 1  block 0, 8 B",
            "  1 -> 2  block 1, 8 B",
            "  2 -> 0  block 2, 8 B",
            "  most over one link so far: 8 B",
        ]

    def test_a_missing_folder(self, tmp_path):
        found = animate(simulate("permute", torus([3])))
        with pytest.raises(BadRequest, match="cannot write"):
            write_player(found, tmp_path / "no" / "a.html", "--animate")
