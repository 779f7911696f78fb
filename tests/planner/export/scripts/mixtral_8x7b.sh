#!/bin/bash
# Mixtral 8x7B: defaults of a scheduler's variables, arguments added where a variable is set.
export CUDA_DEVICE_MAX_CONNECTIONS=1
PER_NODE=8
ADDRESS=${MASTER_ADDR:-"localhost"}
NODES=${SLURM_NNODES:-"4"}
RANK_HERE=${RANK:-"0"}
ALL=$(($PER_NODE*$NODES))
SAVED=$1
TOKENIZER=$2
DATA=$3
START=(
    --nproc_per_node $PER_NODE
    --nnodes $NODES
    --node_rank $RANK_HERE
    --master_addr $ADDRESS
)
SHAPE=(
    --use-mcore-models
    --disable-bias-linear
    --seq-length 4096
    --max-position-embeddings 32768
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --normalization RMSNorm
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
    --group-query-attention
    --num-query-groups 8
    --no-masked-softmax-fusion
    --rotary-base 1000000
)
EXPERTS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --overlap-param-gather
    --overlap-grad-reduce
)
INPUTS=(
    --tokenizer-type Llama2Tokenizer
    --tokenizer-model ${TOKENIZER}
    --data-path $DATA
    --split 99990,8,2
)
STEPS=(
    --micro-batch-size 1
    --global-batch-size 256
    --lr 1e-4
    --clip-grad 1.0
    --bf16
)
CUTS=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 4
    --expert-model-parallel-size 8
    --use-distributed-optimizer
    --sequence-parallel
)
OUTPUTS=(
    --log-interval 1 \
    --save $SAVED \
    --tensorboard-dir "${SAVED}/tensorboard" \
    --no-load-rng
)
if [ -n "${WANDB_API_KEY}" ]; then
    OUTPUTS+=(
        --wandb-project ${WANDB_PROJECT:-"Mixtral"}
    )
fi
torchrun ${START[@]} pretrain_gpt.py \
    ${SHAPE[@]} \
    ${EXPERTS[@]} \
    ${INPUTS[@]} \
    ${STEPS[@]} \
    ${CUTS[@]} \
    ${OUTPUTS[@]}
