#!/usr/bin/env python3
"""Compares what the component says it sent with an independent count, pair by pair.

    compare_traffic.py --counted PREFIX [--kinds EI] --report FILE_OR_FOLDER [--sets]

PREFIX.RANK.prof is written by one of
  * Open MPI's own pml monitoring around our PML in the same run: it sees every message that goes
    through the PML, those of collectives too, but not the starts of persistent requests:
        mpirun --mca pml v,monitoring --mca vprotocol correlated --mca pml_monitoring_enable 2
               --mca pml_monitoring_enable_output 3 --mca pml_monitoring_filename PREFIX …
  * the same around stock ob1, of a deterministic program:
        mpirun --mca pml ob1,monitoring --mca pml_monitoring_enable 2 …
  * tests/mpi/pmpi_count.c, preloaded: the program's point-to-point calls, persistent ones too.

FILE is a merged report ({"ranks": [{"rank", "set", "peers": [{"rank", "sent_messages",
"sent_bytes"}]}]}) or a folder of rank-N.json. With --sets also: the payload log took exactly the
bytes that left the sets (for runs in which nothing was dropped from the log).

Exit code 0: equal; 1: different; 2: something could not be read.
"""

import argparse
import glob
import json
import os
import re
import sys

ROW = re.compile(r"^([EI])\t(\d+)\t(\d+)\t(\d+) bytes\t(\d+) msgs sent")


def counted(prefix, kinds):
    """{(source, destination): [messages, bytes]} from PREFIX.RANK.prof."""
    pairs = {}
    paths = [p for p in glob.glob(glob.escape(prefix) + ".*.prof")]
    for path in paths:
        with open(path) as file:
            for line in file:
                row = ROW.match(line)
                if row and row.group(1) in kinds:
                    entry = pairs.setdefault((int(row.group(2)), int(row.group(3))), [0, 0])
                    entry[0] += int(row.group(5))
                    entry[1] += int(row.group(4))
    return pairs, len(paths)


def ranks_of(path):
    if os.path.isdir(path):
        ranks = []
        for name in glob.glob(os.path.join(glob.escape(path), "rank-*.json")):
            with open(name) as file:
                ranks.append(json.load(file))
    else:
        with open(path) as file:
            ranks = json.load(file)["ranks"]
    return sorted(ranks, key=lambda rank: rank["rank"])


def compare(count, ranks):
    said = {}
    for rank in ranks:
        for peer in rank["peers"]:
            pair = (rank["rank"], peer["rank"])
            said[pair] = [peer["sent_messages"], peer["sent_bytes"]]
    differences = []
    for pair in sorted(set(count) | set(said)):
        theirs, ours = count.get(pair, [0, 0]), said.get(pair, [0, 0])
        if theirs != ours:
            differences.append(
                f"{pair[0]} -> {pair[1]}: counted {theirs[0]} messages, {theirs[1]} bytes; "
                f"reported {ours[0]} messages, {ours[1]} bytes"
            )
    return differences


def check_sets(count, ranks):
    """Outgoing bytes by the count and the sets, against what each payload log took."""
    differences = []
    set_of = {rank["rank"]: rank["set"] for rank in ranks}
    for rank in ranks:
        outgoing = sum(
            entry[1]
            for (source, destination), entry in count.items()
            if source == rank["rank"] and set_of[source] != set_of[destination]
        )
        log = rank.get("log_bytes", rank.get("counters", {}).get("log_bytes"))
        if log != outgoing:
            differences.append(
                f"rank {rank['rank']}: {outgoing} bytes left its set, "
                f"the payload log holds {log}"
            )
    return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counted", required=True, metavar="PREFIX")
    parser.add_argument("--kinds", default="EI", help="E: the program's messages, I: internal ones")
    parser.add_argument("--report", required=True, metavar="FILE_OR_FOLDER")
    parser.add_argument("--sets", action="store_true")
    arguments = parser.parse_args()
    try:
        count, files = counted(arguments.counted, arguments.kinds)
        ranks = ranks_of(arguments.report)
    except (OSError, ValueError, KeyError) as error:
        print(f"cannot read: {error!r}", file=sys.stderr)
        return 2
    if files == 0 or files != len(ranks):
        print(
            f"{files} files {arguments.counted}.*.prof, but {len(ranks)} ranks in the report",
            file=sys.stderr,
        )
        return 2
    differences = compare(count, ranks)
    if arguments.sets:
        differences += check_sets(count, ranks)
    for line in differences:
        print(line)
    messages, size = (sum(entry[k] for entry in count.values()) for k in (0, 1))
    print(
        f"{len(count)} pairs, {messages} messages, {size} bytes: "
        + (f"{len(differences)} differences" if differences else "equal")
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
