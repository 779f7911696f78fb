"""Compile, read and time programs; imports `base/` and `pricing/`.

`compile.py`, `compare.py`, `explain.py` and `profile.py` have the requests; the work is in
`compiling.py`, `comparing.py`, `explaining.py` and `profiling.py` (what they compile:
`programs.py`, and `saved.py` for programs that exist already). `compile_result.py` shapes what was
compiled, `compile_report.py` keeps it in files, `graphs.py` says what CUDA graphs hide from a
capture, `report_result.py` reads those for `report.py` (sample: `data/`), `stages_page.py` shows an
op at every stage. `candidate.py` is a plan of a search as compiled, with compiler flags tried in
`tune.py`; `against.py` sets a program beside another one, `trying.py` compiles cures, `issue.py`
reports to maintainers. Read `compile.py` first.
"""
