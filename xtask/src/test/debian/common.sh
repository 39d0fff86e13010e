# What the scripts in this folder use. XTASK, MPIRUN_OPTIONS, RING and LONG are given.

# What was put into files is shown where a script ends early.
trap 'code=$?; [ $code = 0 ] || tail -n 20 said out complained 2> none; exit $code' EXIT

# Everything that an installation could have changed: names, owners, rights, contents.
state() {
    for folder in /etc /home /root /usr/bin /usr/lib /var/lib/dpkg; do
        find "$folder" -path "$PWD" -prune -o ! -name 'diversions-old' ! -name 'status-old' \
            ! -name 'diversions*' -printf '%p %M %u %l\n'
    done 2> none | sort
    find /etc /home /root /usr/lib/*/pmix2 /usr/lib/*/openmpi -path "$PWD" -prune -o -type f \
        -print0 2> none | sort -z |
        xargs -0 sha256sum 2> none || true # some are root's alone
    cat /var/lib/dpkg/diversions
}

# A command of somebody else's says nothing on standard error, and what it says otherwise is kept.
quiet() {
    "$@" > said 2> complained
    if [ -s complained ]; then
        echo "$* complains:"
        cat complained
        exit 1
    fi
}

# With our components installed, nothing of stock's has changed, and a job of ours is one.
is_installed() {
    quiet prte_info
    grep -q 'errmgr: correlated' said
    quiet ompi_info
    grep -q 'vprotocol: correlated' said
    quiet mpirun $MPIRUN_OPTIONS -n 2 "$RING"
    grep -qx OK said
    mv said said-by-stock
    quiet mpirun $MPIRUN_OPTIONS --mca pml v --mca vprotocol correlated \
        --mca vprotocol_correlated_report "$PWD" -n 2 "$RING"
    cmp said said-by-stock
    rm rank-0.json rank-1.json
}

# A program of a job is killed when its first checkpoint is complete; the answer is that of stock.
survives() {
    mpirun $MPIRUN_OPTIONS -n 2 "$LONG" 200 20000 > answer
    mkdir events
    echo 100 > gate
    RUSTBTL_EVENTS=$PWD/events mpirun $MPIRUN_OPTIONS --mca pml v --mca vprotocol correlated \
        -n 2 "$LONG" 200 20000 "$PWD/gate" > again 2> complained &
    job=$!
    await '"event":"checkpoint_completed"'
    # The newest one: guardians are older.
    kill -9 "$(pgrep -n -x "$(basename "$LONG")")"
    await '"event":"set_restarted"'
    echo 1000000 > gate
    wait $job
    cmp answer again
    grep -q 'rolled back to checkpoint' complained
    rm -r events gate answer again
}

# Until the coordinator has logged it; the test as a whole has a limit.
await() {
    until cat events/* 2> none | grep -q "$1"; do
        kill -0 $job || exit 1
        sleep 0.05
    done
}
