"""How right answers are: published runs and measurements beside predictions.

`training/` and `serving/` hold the published runs of each kind and say how far predictions miss
them; `calibration/` fits constants to a machine of one's own; `server_load.py` puts a load on a
live server; `against.py` sets a published plan beside a searched one, choice by choice
(`compare_plans.py`), and what its run measured beside what is predicted of it (`measured.py`).
Nothing here makes an answer: what answers need of it (`roofline/data`) is data that it writes.
Read `training/validate.py` first.
"""
