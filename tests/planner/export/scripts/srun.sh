#!/usr/bin/env bash
DIR=${DIR:-/opt/megatron}
OPTIONS=" \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
    --micro-batch-size 1 --global-batch-size 64 --seq-length 2048 --fp16"
if [ "${FLASH:-1}" -eq 1 ]; then OPTIONS="$OPTIONS --attention-backend flash"; fi
srun -N 2 --ntasks-per-node=8 --container-image="/images/a b.sqsh" --kill-on-bad-exit=1 \
  python ${DIR}/pretrain_gpt.py ${OPTIONS}
