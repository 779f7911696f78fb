"""Verbs: one frozen request each, whose fields are its keywords, and a typed answer.

The command line and Python make the same request: `shardwise plan train --remat block` and
`shardwise.plan_train(..., remat="block")`. Its `answer()` joins the workflows, the evidence and the
book, and gives an Answer (`answer.py`) that prints as the command does, has rows, and says what the
command's document holds; `request.py` makes the Python function of a request. Where output goes is
no business of this folder. Read `answer.py`, then `plan_train.py`.

Plans: `plan_train.py`, `plan_serve.py`, `plan_sweep.py`, `plan_show.py`, `plan_diff.py`,
`plan_schema.py`, `simulate.py`, `export.py` (its texts: `exported.py`); one priced plan as a page
is in `train_page.py` and `serve_page.py`, why it and not another in `train_why.py`, servers under a
load in `served_page.py`, a plan beside the best one in `against_page.py`, days and dollars of a run
in `run_page.py` (its words in `run_words.py`), the best plans of a search as compiled in
`second_opinion.py` and `served_opinion.py` (each a `candidate.py`, with compiler flags tried in
`tune.py`), chips side by side in `side_by_side.py` and `chips_beside.py` (rows of both:
`swept_result.py`). Programs: `compile.py` (an op at every stage: `stages_page.py`; read again:
`report.py`), `compare.py`, `explain.py` (what they compile: `programs.py`), `profile.py` and
`train.py`. Arrays: `shard.py`, with the fields in `sharded_result.py` and the page in
`shard_page.py`. Tables: `hw.py` (its pieces: `hw_result.py`), `model.py`, `roofline.py`. The book:
`book.py` lists it, `book_figure.py` has its figures and machines (drawn in `simulation_page.py`),
`book_show.py` its numbers, `book_quiz.py` asks for them, `book_rule.py` has its rules,
`book_errata.py` its errata. Documents: `schema.py`, with the schemas in `data/`. How right it is:
`validate.py`, `calibrate.py`, `bench_serve.py`. Pages are put together of what `layout.py` has: at
most 30 lines of 100 columns.
"""
