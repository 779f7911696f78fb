"""Show, compare and export saved plans; imports the rooms that make and price them.

`show.py` is `plan show`, `diff.py` is `plan diff`, `export.py` is `export` (its texts:
`exported.py`), `check.py` is `check` (`changes.py` finds what to change in the file, `failure.py`
reads why it ran out of memory, `check_words.py` and `file_checked.py` say it). Read `show.py`
first.
"""
