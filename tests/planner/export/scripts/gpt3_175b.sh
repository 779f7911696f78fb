#!/bin/bash
# A GPT-3 of 175B parameters: arrays, positional arguments, comments inside arrays.
export CUDA_DEVICE_MAX_CONNECTIONS=1
PER_NODE=8
NODES=1   # change for more
ADDRESS=localhost
ALL=$(($PER_NODE*$NODES))
SAVED=$1 #<where>
LOGS=$2
VOCAB=$3
MERGES=$4
DATA=$5

START=(
    --nproc_per_node $PER_NODE 
    --nnodes $NODES 
    --master_addr $ADDRESS 
    --master_port 6000
)
SHAPE=(
    --num-layers 96 
    --hidden-size 12288 
    --num-attention-heads 96 
    --seq-length 2048 
    --max-position-embeddings 2048 
    --attention-backend auto # or (flash/fused)
)
STEPS=(
    --micro-batch-size 1 
    --global-batch-size 1536 
    --rampup-batch-size 16 16 5859375 
    --train-iters 500000 
    --weight-decay 0.1 
    --adam-beta1 0.9 
    --clip-grad 1.0 
    --fp16
    --lr 6.0e-5 
    --lr-warmup-fraction .001 
)
CUTS=(
	--tensor-model-parallel-size 8 
	--pipeline-model-parallel-size 16 
)
INPUTS=(
    --data-path $DATA 
    --vocab-file $VOCAB 
    --merge-file $MERGES 
    --split 949,50,1
)
OUTPUTS=(
    --log-interval 100
    --save $SAVED 
    --load $SAVED 
    --tensorboard-dir $LOGS 
)

torchrun ${START[@]} pretrain_gpt.py \
    ${SHAPE[@]} \
    ${STEPS[@]} \
    ${CUTS[@]} \
    ${INPUTS[@]} \
    ${OUTPUTS[@]}
