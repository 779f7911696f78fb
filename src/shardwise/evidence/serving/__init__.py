"""Published serving measurements: rows of a table become runs, priced and held against them.

`runs.py` reads the table (`data/serving_runs.csv`) and says what a row leaves open, `times.py`
prices a run's steps, `loop.py` makes times of the closed loop of its requests from them,
`validate.py` sums up the errors. Engines' constants are fitted elsewhere
(`scripts/fit_serving.py`). Read `runs.py` first.
"""
