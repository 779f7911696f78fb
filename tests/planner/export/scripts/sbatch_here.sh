#!/bin/bash
# A job that the script writes itself: Slurm gets it on its standard input.
NODES=${NODES:-2}
IFS=',' read -r MODEL SIZE <<< "llama,8b"
ARGS=(
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --bf16
  --micro-batch-size 1 --global-batch-size $((NODES * 32)) --tensor-model-parallel-size 2
)
CMD="cd .; python pretrain_gpt.py ${ARGS[@]}"
sbatch << EOF
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8

srun --mpi=pmix bash -x -c "${CMD}" 2>&1 | tee job.log
exit 0
EOF
echo submitted
