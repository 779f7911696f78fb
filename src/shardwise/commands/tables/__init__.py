"""What is looked up: chips, models, rooflines, runs, schemas, the book; imports `base/` and others.

`hw.py` (its pieces: `hw_result.py`), `model.py`, `roofline.py` (other ops than a product:
`roofline_ops.py`; `measured.py` says how good a measured time is); `validate.py` sets predictions
beside published runs. `schema.py` has the schemas of documents in `data/`, `plan_schema.py` that of
plans. `book.py` lists the book, `book_figure.py` has its figures and machines (drawn in
`simulation_page.py`), `book_show.py` its numbers, `book_quiz.py` asks for them, `book_rule.py` has
its rules, `book_errata.py` its errata, `book_words.py` options that they share. Read `hw.py` first.
"""
