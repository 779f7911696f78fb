#!/bin/bash
NODES=2
RUN="torchrun --nproc_per_node=8 --nnodes=$NODES --node_rank=\$SLURM_PROCID pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --micro-batch-size 1 \
  --global-batch-size 64 --seq-length 2048 --bf16"
srun --nodes $NODES --ntasks-per-node 1 bash -c "$RUN"
