"""Fields of answers about priced, served, simulated and compiled plans.

`train.py` has a training plan with its times and memory, and the best of a search; `run.py` a whole
run in days and dollars; `server.py` one server, `served.py` servers under a load, `simulated.py`
what a simulation of them gave; `compiled.py` plans that a search had compiled; `profiled.py` a
program that ran; `sensitivity.py` an answer with one input changed. Each field has its type and, in
the string below it, meaning and unit (`boundary/records.py`); functions beside it make
a record of a priced plan. Nothing here searches or parses user input. Read `train.py` first.
"""
