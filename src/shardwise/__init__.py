"""shardwise: count, price and plan language models on TPUs and GPUs.

The verbs of the package are re-exported here; none of them loads JAX.
"""
