"""`shardwise ui`: a page on this machine; every view calls only the public API.

Read `view.py` first: a view is a row with its controls (`controls.py`) as data, the calls
(`call.py`) that a state of those makes, and how their answers are drawn (`figures.py`: marks on
axes, tables). Each of `views/` is one file; `views/__init__.py` lists them. `lectures.py` has
sequences of questions and views, a chapter each. `app.py` answers `/api/views`, `/api/view/NAME`,
`/api/answer/NAME`, `/api/sheet/NAME/GROWTH`, `/api/trace/NAME` and `/api/lecture/CHAPTER`, keeps
the files that it is given at `/api/given` (`given.py`), and hands out `bundle/`, which is built
from `page/` of the repository by `scripts/page`; `run.py` listens. `site.py` writes the page with
the answers of the states of `grid.py` as files. Neither this folder nor the browser
computes anything.
"""
