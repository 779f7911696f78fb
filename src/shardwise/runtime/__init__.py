"""Running in JAX: code that a user's program calls on real devices. It imports JAX.

`collective_matmul/` holds matmuls that overlap their own communication. Nothing is predicted and
nothing is measured here, and no file reads a plan. Read `collective_matmul/all_gather.py` first.
"""
