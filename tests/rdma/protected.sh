# Protected jobs over both adapters: functions for job.sh of vm.sh, which sources this file. Nothing
# waits without an end: then what the job has said and its events are printed, and the status is 1.

folder=/tmp/checkpoints
gate=/tmp/gate
said=/tmp/said
report=/tmp/report
mkdir -p $folder $report
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cd /tmp || exit 1

events() { cat $folder/*/events.jsonl 2> /dev/null; }
count() { events | grep -c "\"event\":\"$1\""; } # EVENT
fail() {
    echo "failed: $*"
    cat $said
    events
    exit 1
}

await() { # EVENT COUNT
    local turn
    for turn in $(seq 400); do
        [ "$(count "$1")" -ge "$2" ] && return
        sleep .1
    done
    fail "after 40 s there are $(count "$1") events $1, not $2"
}

# What the program says over stock Open MPI, before any parameter is set.
stock() { # PROGRAM ARGUMENT...
    timeout 60 mpirun --oversubscribe --mca pml ob1 --mca btl tcp,self \
        --mca btl_tcp_if_include lo --mca plm isolated -np 2 "$@" | grep ^HASH
}

# In the background, each rank with an adapter of its own, or, where rails is set, with both, in
# another order. The gate lets it go to iteration 50.
start() { # PROGRAM ARGUMENT...
    local include=OMPI_MCA_vprotocol_correlated_verbs_if_include
    echo 50 > $gate
    timeout 100 mpirun --oversubscribe -np 1 -x $include=rxe1${rails:+,rxe2} "$@" : \
        -np 1 -x $include=rxe2${rails:+,rxe1} "$@" > $said 2>&1 &
    job=$!
}

restart() {
    timeout 100 "$rustbtl" restart $folder --oversubscribe > $said 2>&1 &
    job=$!
}

checkpoint_and_exit() {
    timeout 60 "$rustbtl" checkpoint --all --then-exit || fail "no checkpoint: $?"
    wait $job || fail "the job that was to exit has ended with $?"
}

kill_rank() { # RANK
    local rank
    rank=$(events | grep '"event":"rank"' | grep "\"rank\":$1," | tail -n 1)
    [[ $rank =~ \"pid\":([0-9]+) ]] || fail "rank $1 has no process"
    kill -9 "${BASH_REMATCH[1]}"
}

kill_each() { # PROGRAM...: started; each rank is killed and rolled back, with checkpoints meanwhile
    local before
    start "$@"
    await checkpoint_completed 2
    kill_rank 1
    await replay_completed 1
    before=$(count checkpoint_completed)
    await checkpoint_completed $((before + 2))
    kill_rank 0
    await replay_completed 2
    must_send
}

# Opens the gate: the job ends well, and says this.
finish() { # ANSWER
    echo 2000000000 > $gate
    wait $job || fail "the job has ended with $?"
    [ "$(grep ^HASH $said)" = "$1" ] && [ -n "$1" ] || fail "the job should say: $1"
}

packets() { cat /sys/class/infiniband/rxe1/ports/1/hw_counters/sent_pkts; }

must_send() { # by the first adapter, within 20 s
    local before turn
    before=$(packets)
    for turn in $(seq 200); do
        [ "$(packets)" -ge $((before + 200)) ] && return
        sleep .1
    done
    fail "the first adapter has sent $before packets and then $(packets)"
}

must_say_once() { # TEXT
    [ "$(grep -c -- "$1" $said)" = 1 ] || fail "not once: $1"
}

must_say() { # COUNT TEXT
    [ "$(grep -c -- "$2" $said)" = "$1" ] || fail "not $1 times: $2"
}

must_have_fetched() { # MESSAGES, each rank at least
    local rank fetched
    for rank in 0 1; do
        fetched=$(grep -o '"fetched_messages":[0-9]*' $report/rank-$rank.json | cut -d: -f2)
        [ "${fetched:-0}" -ge "$1" ] || fail "rank $rank has fetched ${fetched:-no} messages"
    done
}

packets_lost() { # PERCENT, of what both adapters send
    local link
    for link in v1 v2; do
        tc qdisc add dev $link root netem loss "$1" || fail "$link loses nothing"
    done
}

must_have_lost() { # PACKETS, each link at least
    local link lost
    for link in v1 v2; do
        lost=$(tc -s qdisc show dev $link | grep -o 'dropped [0-9]*' | head -n 1)
        [ "${lost#dropped }" -ge "$1" ] || fail "$link: $lost packets"
    done
}

link_down() { ip link set v1 down; }

# Its routes are gone with it (vm.sh).
link_up() {
    ip link set v1 up
    ip route add 10.9.0.2 dev v1 table 101
}

over_tcp_and_back() { # PROGRAM...: started, restarted without adapters, and with them again
    start "$@"
    await checkpoint_completed 1
    must_send
    checkpoint_and_exit
    adapters_removed
    restart
    await ready 2
    grep -q 'no verbs after a restart: .*; messages go over TCP' $said || fail 'no notice'
    echo 150 > $gate
    checkpoint_and_exit
    adapters_added
    restart
    must_send
}

adapters_removed() {
    local adapter
    for adapter in rxe1 rxe2; do
        timeout -s KILL 20 rdma link delete $adapter || fail "$adapter is still in use"
    done
}

adapters_added() {
    local turn
    for turn in 1 2; do
        rdma link add rxe$turn type rxe netdev v$turn || fail "rxe$turn is not there again"
    done
    for turn in $(seq 100); do
        [ "$(rdma link | grep -c ACTIVE)" = 2 ] && return
        sleep .1
    done
    fail "adapters are not active: $(rdma link)"
}
