#!/bin/bash
# Llama 3 8B in fp8: defaults, conditions, arrays that grow, elements of two words.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
#export LOG_LEVEL=${LOG_LEVEL:-INFO}
SAVED=${1:-"runs/llama3_8b_fp8"}
TOKENIZER=${2:-"MOCK"} # a path, or "MOCK"
DATA=${3:-"MOCK"}
mkdir -p "$(dirname "$SAVED")"

PER_NODE=8
NODES=1
ADDRESS=${MASTER_ADDR:-localhost}
RANK_HERE=${NODE_RANK:-0}
PROGRAM="pretrain_gpt.py"
TP=1     
CP=1     
DTYPE="fp8"
CACHE="${PWD}/cache_fp8"
mkdir -p "$CACHE"

START=(
    --nproc_per_node $PER_NODE
    --nnodes $NODES
    --node_rank $RANK_HERE
    --master_addr $ADDRESS
)
SHAPE=(
    --use-mcore-models
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 1000000 
    --swiglu
    --attention-backend fused
    --apply-layernorm-1p 
    --untie-embeddings-and-output-weights
    --disable-bias-linear 
)
STEPS=(
    --micro-batch-size 1
    --global-batch-size 128
    --lr 0.00015
    --bf16
    --grad-reduce-in-bf16
    --cross-entropy-loss-fusion
    --calculate-per-token-loss 
    --manual-gc 
)
FP8=()
if [[ "$DTYPE" == "fp8" ]]; then
    FP8+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-param-gather"
    )
fi
CUTS=(
    --tensor-model-parallel-size $TP
    --context-parallel-size $CP
    # --pipeline-model-parallel-size $PP
    --sequence-parallel  # with TP > 1
)
COPIES=(
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
STEPS+=("${COPIES[@]}")
INPUTS=()
if [[ "$TOKENIZER" == "MOCK" ]] || [[ "$DATA" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    INPUTS+=(
        "--mock-data"
        "--tokenizer-type NullTokenizer"
        "--vocab-size 128256" 
        "--data-cache-path ${CACHE}"
        "--split '99,1,0'"
    )
else
    INPUTS+=("--data-path $DATA" "--tokenizer-model $TOKENIZER" "--vocab-size 128256")
fi
if [ ! -f "$PROGRAM" ]; then
    echo "there is no $PROGRAM; start this where it lies"
    exit 1
fi
torchrun ${START[@]} \
    "$PROGRAM" \
    ${SHAPE[@]} \
    ${STEPS[@]} \
    ${FP8[@]} \
    ${CUTS[@]} \
    ${INPUTS[@]}

set +x
