"""The fit behind `scripts/fit_efficiency.py`: constants of chips and of software from runs.

`constants.py` has what is fitted, `priors.py` and `rates.py` what is known of it before any run,
`hierarchy.py` what it is drawn from. `cases.py` prices runs, `solve.py` finds the constants,
`folds.py` leaves each group of runs out, `ranges.py` makes the 80 % ranges of that by the table of
`residuals.py`, `baseline.py` the constant MFU beside it; `resolution.py` makes the table of what
predictions cannot tell, `few_runs.py` the spread of a publisher's runs (`spread.py`). `explain.py`
and `worth.py` (run by `scripts/fit_worth.py`) say what a constant rests on and is worth,
`terms.py` lists the terms that plans switch; `regressions.py` lists releases that got slower;
`outputs.py` and `report.py` write.
`serving.py` is the fit of engines. Read `folds.py` first.
"""
