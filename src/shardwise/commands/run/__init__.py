"""What runs on this machine or asks a live server; imports `base/` and `pricing/`.

`train.py` is `train`, `training.py` its work in one process and `workers.py` that of several;
`serving.py` opens the replica of `serve`, a `served_model.py`. `bench_serve.py` is `bench serve`,
whose load `server_load.py` sends. `calibrate.py` is `calibrate`; `calibration/` fits the constants.
`asking.py` has what `generate` and `chat` ask a server. Read `train.py` first.
"""
