#!/usr/bin/env bash
# Trains with the reference script on all nodes of a Slurm allocation:
#
#   export DATA_HOME=/shared/data MODEL_PATH=/shared/Qwen3-8B-Base CKPTS_DIR=/shared/checkpoints
#   sbatch --partition=PARTITION --account=ACCOUNT --nodes=4 examples/cluster/slurm.sh [OVERRIDE ...]
#
# Submit it from the repository's folder, or set REPOSITORY. Arguments are further Hydra overrides, with paths relative to
# where sbatch is called. Nodes must be the job's alone: `ray symmetric-run` ends every Ray of this user on them. The
# environment decides:
#
#   DATA_HOME, CKPTS_DIR   as in test_qwen3_8b.sh; both on a disk that all nodes share; the second is required
#   MODEL_PATH             as in test_qwen3_8b.sh: a folder, the same on every node, or a name on the hub
#                          [Qwen/Qwen3-8B-Base]
#   REPOSITORY             folder of this repository, the same on every node [where sbatch was called]
#   VENV                   Python environment with the GPU builds, a venv or one of conda, the same on every node [the
#                          one that is active where sbatch is called]
#   TRAIN                  script that trains, from REPOSITORY [recipe/async_dapo/test_qwen3_8b.sh]
#SBATCH --job-name=async-dapo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=2-00:00:00
#SBATCH --output=async-dapo-%j.log
#SBATCH --open-mode=append
set -euo pipefail

named=
for argument in "$@"; do
  if [[ $argument =~ ^[+]{0,2}data[.](train|val)_files= ]]; then named+=${BASH_REMATCH[1]}; fi
done
if [[ $named != *train* || $named != *val* ]]; then
  : "${DATA_HOME:?set DATA_HOME to the folder of the data, on a disk that all nodes share, or name the files of both}"
fi
: "${CKPTS_DIR:?set CKPTS_DIR to a folder that all nodes share: each writes a part of every checkpoint}"
: "${SLURM_JOB_ID:?submit it with sbatch}"
venv=${VENV:-${VIRTUAL_ENV:-${CONDA_PREFIX:-}}}
: "${venv:?set VENV to the Python environment of the GPU builds, on a disk that all nodes share, or activate it}"
if [[ ! -x $venv/bin/python3 ]]; then
  echo "slurm.sh: $venv is no Python environment of this node: set VENV to one on a disk that all nodes share" >&2
  exit 1
fi
train=${TRAIN:-recipe/async_dapo/test_qwen3_8b.sh}
if [[ $train != /* ]]; then train=${REPOSITORY:-$SLURM_SUBMIT_DIR}/$train; fi
export PATH="$venv/bin:$PATH"

# Two jobs of one cluster meet neither each other's Ray, as the port is the job's, nor each other's files.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(getent ahostsv4 "${hosts[0]}" | awk 'NR == 1 { print $1 }')
port=$((20000 + SLURM_JOB_ID % 10000))
export RAY_ADDRESS=$head:$port NNODES=$SLURM_JOB_NUM_NODES
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=600 # for the slowest node, whose packages may come over a network [s]

# Whoever reaches Ray's ports can run code: all calls carry a token that only this job knows.
RAY_AUTH_TOKEN=$(od --address-radix=n --read-bytes=32 --format=x1 /dev/urandom | tr --delete ' \n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
export RAY_health_check_timeout_ms=2000

ulimit -n "$(ulimit -Hn)"
# A site may bind a task to one core; Slurm may queue a job again whose node has failed, which keeps its log and resumes.
exec srun --ntasks="$NNODES" --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 \
  ray symmetric-run --address "$RAY_ADDRESS" --min-nodes "$NNODES" --temp-dir="/tmp/ray-$SLURM_JOB_ID" -- \
  bash "$train" "$@"
