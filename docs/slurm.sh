#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=16 --time=12:00:00
#SBATCH --signal=B:USR1@600 --requeue --open-mode=append
#
# sbatch [options of sbatch] slurm.sh PROGRAM [ARGUMENTS…]
#
# Runs an MPI program under rustbtl until it is done, however many allocations that takes. Ten
# minutes before the end of each, Slurm sends SIGUSR1 to this script, the job ends at a checkpoint,
# and Slurm queues it again. The same after the loss of a node: it is restarted from the newest
# checkpoint.
# RUSTBTL_CHECKPOINTS: a directory that all nodes share, for this job alone: if there is a checkpoint
# in it, that is restarted, and not PROGRAM. Default: one beside where sbatch was called.
# The command rustbtl has to be in PATH.

dir=${RUSTBTL_CHECKPOINTS:-$SLURM_SUBMIT_DIR/checkpoints-$SLURM_JOB_ID}
mkdir -p "$dir" || exit
command -v rustbtl > /dev/null || { echo "slurm.sh: rustbtl is not in PATH" >&2; exit 1; }
# To mpirun, SIGUSR1 means: a checkpoint, and then the end.
options=(--mca vprotocol_correlated_checkpoint_signal USR1:exit)

# Job, number and kind; a path may contain that word, too.
if rustbtl list "$dir" | grep -qE '^[^ ]+ +[0-9]+ global '; then
    rustbtl restart "$dir" "${options[@]}" &
else
    mpirun --mca pml v --mca vprotocol correlated \
        --mca vprotocol_correlated_checkpoint_dir "$dir" "${options[@]}" "$@" &
fi
job=$!

signals=0
trap 'signals=$((signals + 1)); kill -USR1 "$job"' USR1
# A signal ends a wait early; the one after the last signal returns the job's exit code.
waited=-1
while [ "$waited" != "$signals" ]; do
    waited=$signals
    wait "$job"
    code=$?
done

# Did it end at a checkpoint, or because it was done?
newest=$(ls -t "$dir"/*/events.jsonl | head -n 1)
if [ "$code" = 0 ] && grep -q '"event":"exit"' "$newest"; then
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
