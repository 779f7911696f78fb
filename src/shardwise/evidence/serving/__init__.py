"""Published serving measurements: rows of a table become runs, priced and held against them.

`runs.py` reads the table (`data/serving_runs.csv`) and says what a row leaves open, `notation.py`
turns the rows of collected tables into its columns. `times.py` prices a run's steps, `loop.py`
makes times of the closed loop of its requests from them, on one kind of server or on two pools.
`validate.py` sums up the errors, those of fits that had not seen a run (`data/left_out.json`)
first; `validation_result.py` is what is told of them. Engines' constants are fitted elsewhere
(`scripts/fit_serving.py`), and caches are counted for servers that printed theirs
(`scripts/cache_sizes.py`). Read `runs.py` first.
"""
