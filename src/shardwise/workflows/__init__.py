"""Workflows join the verbs: what a request names becomes values, values become an answer.

`inputs.py` turns the words of a request (a model name, a slice's spelling, overrides) into values;
`predict.py` plans, prices and shapes the result document, `book.py` sets the book's rules beside
it, `audits.py` holds plans of published runs against them, `figures.py` has the book's figures as
data, `plan_file.py` prices a plan that was saved or written by hand, `plan_diff.py` compares two
of them and `export.py` writes one for another framework. Nothing is counted here.
"""
