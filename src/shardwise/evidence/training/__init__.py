"""Published training runs: rows of a table become plans, priced and held against measurements.

`table.py` has the format of a row, `runs.py` reads the table (`data/training_runs.csv`),
`models.py` finds each row's model, `plans.py` what its choices mean as a TrainPlan and `remat.py`
what it recomputes; `validate.py` prices all and sums up errors (`scores.py`) and ranges, those of
published runs as they were predicted without their group (`unseen.py`); `validation_result.py` is
what is told of them. `own.py` reads a user's runs as evidence. Nothing is fitted here:
`scripts/fit_efficiency.py` does that. Read `runs.py` first.
"""
