#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=16 --time=12:00:00
#SBATCH --signal=B:USR1@600 --requeue --open-mode=append
#
# sbatch [options of sbatch] slurm.sh PROGRAM [ARGUMENTS…]
#
# Runs an MPI program under rustbtl until it is done, however many allocations that takes. Ten
# minutes before the end of each, Slurm sends SIGUSR1 to this script, the job ends at a line, and
# Slurm queues it again. The same after the loss of a node: it goes on from the newest line.
# RUSTBTL_LINES: a directory that all nodes share, by default beside where sbatch was called.

lines=${RUSTBTL_LINES:-$SLURM_SUBMIT_DIR/lines-$SLURM_JOB_ID}
mkdir -p "$lines" || exit
# To mpirun, SIGUSR1 means: a line, and then the end.
options=(--mca vprotocol_correlated_signal USR1:exit)

if rustbtl lines "$lines" | grep -q global; then
    rustbtl restart "$lines" "${options[@]}" &
else
    mpirun --mca pml v --mca vprotocol correlated --mca vprotocol_correlated_dir "$lines" \
        "${options[@]}" "$@" &
fi
job=$!

signals=0
trap 'signals=$((signals + 1)); kill -USR1 "$job"' USR1
# A signal ends a wait early; the one after the last signal tells how the job has ended.
waited=-1
while [ "$waited" != "$signals" ]; do
    waited=$signals
    wait "$job"
    code=$?
done

# Did it end at a line, or because it was done?
newest=$(ls -t "$lines"/*/events.jsonl | head -n 1)
if [ "$code" = 0 ] && grep -q '"event":"exit"' "$newest"; then
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
