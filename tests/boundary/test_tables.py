"""CSV: unique columns, rows as long as the header, messages with lines."""

import pytest

from shardwise.boundary import check_columns, parse_table, read_table
from shardwise.errors import BadRequest


def test_a_table_is_read_with_its_lines():
    found = parse_table('a, b\r\n1,"x, y"\n\n2,"two\nlines"\n', "it", needed=("a", "b"))
    assert found.columns == ("a", "b")
    assert found.rows == ({"a": "1", "b": "x, y"}, {"a": "2", "b": "two\nlines"})
    assert [found.at(i) for i in range(2)] == ["it, line 2", "it, line 4"]
    assert parse_table("# c\na\n1", "it", is_comment=lambda t: t[0] == "#").lines == (3,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty; its first line must name its columns"),
        ("\n\n", "it is empty"),
        ("a,b\n1\n", "it, line 2: it has 1 cells and the header has 2"),
        ("a,b\n1,2\n1,2,3\n", "it, line 3: it has 3 cells and the header has 2"),
        ("a,a\n", "it names the column 'a' twice; keep one"),
        ("a,c\n", "it lacks the column(s) b; it has 'a', 'c'"),
        ('a,b\n1,"2\n', "it, line 2 is not CSV"),
        ('a,b\n1,"2\n' + "x\n" * 100_000, "over 131,072 characters (is a quote not closed?)"),
        (f"a,b\n1,{'x' * 131_073}", "over 131,072 characters"),
        ("a,b\n" + "1,2\n" * 500_001, "more than 500,000 lines, the limit"),
        (",".join(f"c{i}" for i in range(5000)) + "\n", "it lacks the column(s) b"),
        (
            ",".join(["b", *(f"c{i}" for i in range(999))]) + f"\n{',' * 998}x,\n" * 5000,
            "more than 4,000,000 cells",
        ),
    ],
)
def test_tables_that_are_refused(text, said):
    with pytest.raises(BadRequest) as error:
        parse_table(text, "it", needed=("b",))
    assert said in str(error.value)
    assert len(str(error.value)) < 500


def test_columns_may_be_asked_for_later(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("\ufeffa,b\n1,2\n")
    table = read_table(path, "the table")
    check_columns(table, ["a"])
    with pytest.raises(BadRequest, match=r"the table '.*t.csv' lacks the column\(s\) c; it has"):
        check_columns(table, ["a", "c"])
