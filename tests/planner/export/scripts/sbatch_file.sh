#!/bin/bash
TP=4
cat > job.sh <<EOF
#!/bin/bash
#SBATCH --nodes=4
srun --gpus-per-node=8 torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --bf16 \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
  --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size $TP
EOF
sbatch job.sh
