"""What is told of plans that were priced, served, simulated or compiled: the fields of answers.

`train.py` has a training plan with its times and memory, and the best of a search; `run.py` a whole
run in days and dollars; `server.py` one server, `served.py` servers under a load, `simulated.py`
what a simulation of them gave; `compiled.py` plans that a search had compiled; `profiled.py` a
program that ran; `sensitivity.py` an answer with one input changed. Each field has its type and, in
the string below it, meaning and unit (`boundary/records.py`); what makes a record of a priced plan
stands beside it. Nothing is searched here and no words of a person are read. Read `train.py` first.
"""
