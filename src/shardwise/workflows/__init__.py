"""Workflows join the verbs: what a request names becomes values, values become an answer.

`inputs.py` turns the words of a request (a model name, a slice's spelling, overrides) into values;
`predict.py` plans, prices and shapes the result document. Nothing is counted or priced here.
"""
