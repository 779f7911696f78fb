#!/bin/bash
#SBATCH --nodes=4 --job-name=llama  # a comment
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
set -euo pipefail
: "${SEQUENCE:=4096}"
MICRO=2; BATCH=$((MICRO * 8 * 4))
declare -a ROUND=("tensor" "pipeline")
sizes="2 1"
i=0
CUTS=""
for size in $sizes; do
  CUTS+=" --${ROUND[$i]}-model-parallel-size $size"
  i=$((i+1))
done
case "${MODEL:-small}" in
  large|huge) SHAPE="--num-layers 80" ;;
  small) SHAPE="--num-layers 32 --hidden-size 4096 --num-attention-heads 32" ;;
  *) echo "no such model"; exit 1 ;;
esac
function train() {
  local name=$1; shift
  run="python -u -m torch.distributed.run --nnodes=4 --nproc-per-node 8 \
    --rdzv_backend c10d pretrain_gpt.py --bf16 ${SHAPE}${CUTS} --save ${name%.*}/x $*"
  echo "$run"
  eval ${run}
}
cat > notes.txt <<NOTES
torchrun nothing.py --num-layers 1
NOTES
[[ $BATCH -gt 10 && -n "$SEQUENCE" ]] && EXTRA=--swiglu || EXTRA=
train llama.8b --micro-batch-size $MICRO --global-batch-size "$BATCH" \
  --seq-length="$SEQUENCE" $EXTRA 2>&1 | tee log.txt
