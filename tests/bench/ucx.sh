#!/bin/sh
# One measurement of ucx_perftest between two ranks: ucx.sh HOST PORT TEST BYTES ROUNDS.
# mpirun only starts the two processes; UCX_TLS in the environment says which transports they use.
options="-t $3 -s $4 -n $5 -w $(($5 / 10 + 1)) -p $2 -f -v"
if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then
    exec ucx_perftest -p "$2" >/dev/null
fi
tries=0
until ucx_perftest "$1" $options 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || exit 1
    sleep 0.1
done
