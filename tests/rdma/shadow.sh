# Functions for shadow verbs in the machine of vm.sh. $library: librustbtl_verbs.so. Every wait has an end.

ulimit -l unlimited
ip link set lo up
cd /tmp

until_so() { # WORDS...: waits until they succeed
    local i
    for i in $(seq 600); do
        "$@" > /dev/null 2>&1 && return 0
        sleep 0.1
    done
    echo "never: $*"
    return 1
}

listens() { # the server of ibv_rc_pingpong and of perftest, on port 18515
    cat /proc/net/tcp /proc/net/tcp6 | grep -q ':4853 .* 0A '
}

answered() { [ -e $folder/result.$1.0 ] && [ -e $folder/result.$1.1 ]; }

has_queue_pairs() { [ $(ls $folder | grep -c '^0\.qp\.') = 2 ]; }

shadowed() { # PROCESS PROCESSES WORDS...
    local process=$1 processes=$2
    shift 2
    LD_PRELOAD=$library RUSTBTL_VERBS_FOLDER=$folder RUSTBTL_VERBS_PROCESS=$process \
        RUSTBTL_VERBS_PROCESSES=$processes "$@"
}

pair() { # ORDERS PROGRAM OPTIONS...: unchanged, between both adapters, while orders are carried out
    local orders=$1 number=0 server client order
    shift
    folder=$(mktemp -d)
    shadowed 0 2 timeout 100 "$@" -d rxe1 > server.log 2>&1 &
    server=$!
    until_so listens || return 1
    shadowed 1 2 timeout 100 "$@" -d rxe2 127.0.0.1 > client.log 2>&1 &
    client=$!
    until_so has_queue_pairs || return 1
    for order in $orders; do
        sleep 0.2
        echo $order > $folder/part
        mv $folder/part $folder/order.$number
        until_so answered $number || break
        tail -n +1 $folder/result.$number.*
        echo
        number=$((number + 1))
    done
    wait $server || { cat server.log; return 1; }
    wait $client || { cat client.log; return 1; }
    cat server.log client.log
}
