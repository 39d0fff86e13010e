#!/bin/bash
# Builds the programs of this folder and runs them with a given mpirun prefix, one after the other.
#   tests/mpi/run.sh [-o DIR] [-n "2 3 4"] [-p "mpirun ARGS…"] [-j FILE.json] [NAME…]
# Reads the first line of each program (README.md). Ends with 0 when all passed.
here=$(cd "$(dirname "$0")" && pwd)
out=/tmp/mpitests ranks="" json=""
prefix="mpirun --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle 1 --mca pml ob1"
while getopts o:n:p:j: option; do
    case $option in
    o) out=$OPTARG ;;
    n) ranks=$OPTARG ;;
    p) prefix=$OPTARG ;;
    j) json=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
mkdir -p "$out/bin" "$out/log"
cd "$out" || exit 2
field() { # FILE KEY DEFAULT
    local v
    v=$(head -1 "$1" | sed 's|^/\*||; s|\*/.*||' | tr ';' '\n' |
        sed -n "s/^ *$2: *\(.*[^ ]\) *$/\1/p")
    echo "${v:-$3}"
}
names=("$@")
[ ${#names[@]} -eq 0 ] && names=($(cd "$here" && ls *.c | sed 's/\.c$//' | grep -v -E "^(pmpi|pml)_count"))
failed=0 lines=()
for name in "${names[@]}"; do
    src=$here/$name.c bin=$out/bin/$name
    if [ ! "$bin" -nt "$src" ] || [ ! "$bin" -nt "$here/check.h" ]; then
        mpicc -std=gnu11 -O2 -Wall -Wextra -Werror -o "$bin" "$src" -pthread || { failed=1; continue; }
    fi
    IFS='|' read -ra variants <<<"$(field "$src" args ' ')"
    want=$(field "$src" exit 0)
    text=$(field "$src" output OK)
    allowed=",$(field "$src" ranks 2,3,4 | tr -d ' '),"
    environment=() extra=""
    [[ $prefix == *"pml ob1"* ]] && extra=$(field "$src" "stock args" "")
    e=$(field "$src" env "")
    [ -n "$e" ] && for kv in $e; do environment+=(-x "$kv"); done
    for n in ${ranks:-$(tr , ' ' <<<"${allowed//[![:digit:],]/}" | awk '{print $NF}')}; do
        [[ $allowed == *",$n,"* ]] || continue
        for args in "${variants[@]}"; do
            log=$out/log/$name.$n.txt
            start=$(date +%s.%N)
            # shellcheck disable=SC2086
            timeout -k 5 150 $prefix $extra "${environment[@]}" -n $n "$bin" $args >"$log" 2>&1 </dev/null
            rc=$?
            seconds=$(echo "$(date +%s.%N) $start" | awk '{printf "%.1f", $1-$2}')
            good=1
            if [ "$want" = nonzero ]; then [ $rc -ne 0 ] && [ $rc -ne 124 ] || good=0
            else [ $rc -eq "$want" ] || good=0; fi
            grep -qxE "$text" "$log" || good=0
            if [[ $prefix == *"pml ob1"* && $(field "$src" stock passes) == fails* ]]; then
                verdict=known # wrong in stock Open MPI, right in ours
                printf '%-4s %6ss  n=%s %s %s\n' known "$seconds" $n "$name" "$args"
                continue
            fi
            [ $good = 1 ] && verdict=pass || { verdict=FAIL; failed=1; }
            printf '%-4s %6ss  n=%s %s %s\n' $verdict "$seconds" $n "$name" "$args"
            [ $good = 1 ] || { echo "     exit $rc, log $log:"; head -c 1500 "$log" | sed 's/^/     | /'; }
            lines+=("{\"name\":\"$name\",\"args\":\"$args\",\"ranks\":$n,\"pass\":$([ $good = 1 ] && echo true || echo false),\"seconds\":$seconds}")
        done
    done
done
[ -n "$json" ] && { IFS=,; echo "[${lines[*]}]" >"$json"; }
exit $failed
