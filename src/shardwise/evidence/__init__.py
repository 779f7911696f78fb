"""Accuracy of answers: published runs and measurements, compared with predictions.

`training/` and `serving/` hold the published runs of each kind and say how far predictions miss
them; `compare_plans.py` sets two plans side by side, choice by choice, and `measured.py` what a run
measured beside what is predicted of it. Nothing here makes an answer: what answers need of it
(`roofline/data`) is data that it writes. Read `training/validate.py` first.
"""
