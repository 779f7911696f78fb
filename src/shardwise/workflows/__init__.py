"""Workflows: words of a request to values, values to an answer; they join the verbs below.

`inputs.py` turns words (a chip's name, a slice's spelling, a batch) into values. Planning:
`predict.py` trains (`train_choices.py` is what its search may not choose); for serving
`serve_words.py` makes the requests; `sweep.py` plans one job many times, `deadline.py` finds the
slice that a run needs. Saved plans: `plan_file.py` prices one, `simulate.py` puts a load on one,
`train.py` runs one. Programs: `compile.py` compiles (`compile_result.py` shapes the answer,
`compile_report.py` keeps what was found in files, `report_result.py` reads those), `explain.py`
says where time goes, `profile.py` measures and `compare.py` sets a plan beside its program.
`serving.py` serves a checkpoint. `shard.py` resolves an expression and `shard_run.py` runs it.
Nothing is counted or priced here, nothing published is read (`evidence/`) and the book is not asked
(`book/`). Read `predict.py` first.
"""
