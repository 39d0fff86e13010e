#!/usr/bin/env python3
"""Runs other people's MPI test suites, one test after the other, with a given mpirun.

    foreign-suite.py mpich  --suite DIR --out FILE.json [options] -- mpirun ARGUMENTS…
    foreign-suite.py mpi4py --suite DIR --out FILE.json [options] -- mpirun ARGUMENTS…
    foreign-suite.py compare BASE.json OTHER.json

mpich:  DIR is the built test/mpi folder of MPICH's source; its testlist files say which programs
        run, with how many ranks. A test passes when it exits with 0 and prints "No Errors".
        Programs that were not built (they need more than MPI 3.1) are skipped, and lines that only
        set variables of MPICH.
mpi4py: DIR is the unpacked source of mpi4py 3.1.4 (its test folder; the installed mpi4py is used).
compare: what passes in BASE and not in OTHER. Exit code 1 if there is anything.

How to build the suites: README.md beside this file.
"""

import argparse
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

MPICH_FOLDERS = (
    "attr coll comm datatype errhan errors group info init io mpi_t pt2pt rma threads topo"
    " impls f77 f90 f08 cxx"
).split()


class Test:
    def __init__(self, name, ranks, command, folder, limit, expect):
        self.name, self.ranks, self.command = name, ranks, command
        self.folder, self.limit, self.expect = folder, limit, expect


def mpich_tests(suite, folders, limit):
    """Reads the testlist files: NAME RANKS [key=value]…, or the name of a folder below."""
    tests, absent = [], []

    def read(folder, seen):
        path = os.path.join(suite, folder, "testlist")
        if not os.path.exists(path):
            return
        for line in open(path):
            words = line.split("#")[0].split()
            if not words:
                continue
            name = words[0]
            if len(words) == 1 and os.path.isdir(os.path.join(suite, folder, name)):
                read(os.path.join(folder, name), seen)
                continue
            ranks = int(words[1]) if len(words) > 1 and words[1].isdigit() else 1
            options = [word.partition("=") for word in words[2:]]
            values = {key: value for key, _, value in options}
            if any(key == "env" for key, _, _ in options) or "xfail" in values:
                continue
            if values.get("strict") == "false" or float(values.get("mem", 0)) > 4:
                continue
            arguments = [value for key, _, value in options if key == "arg"]
            label = " ".join([os.path.join(folder, name), *arguments]) + f" ({ranks})"
            if label in seen:
                continue
            seen.add(label)
            program = os.path.join(suite, folder, name)
            if not os.access(program, os.X_OK) or os.path.isdir(program):
                absent.append(label)
                continue
            # A test that must end with an error: any exit code but a time-out.
            fatal = values.get("resultTest", "").startswith("TestErrFatal")
            expect = "error" if fatal else values.get("resultTest", "")
            tests.append(
                Test(
                    label,
                    ranks,
                    [program, *arguments],
                    os.path.join(suite, folder),
                    max(limit, min(int(values.get("timeLimit", 0)), 300)),
                    expect,
                )
            )

    seen = set()
    for folder in folders:
        read(folder, seen)
    return tests, absent


def mpi4py_tests(suite, ranks, limit):
    names = sorted(
        os.path.basename(path)[:-3] for path in glob.glob(os.path.join(suite, "test/test_*.py"))
    )
    return [
        Test(
            f"{name} ({ranks})",
            ranks,
            ["/usr/bin/python3", "test/runtests.py", "--no-builddir", "-v", "-i", f"^{name}$"],
            suite,
            limit,
            "unittest",
        )
        for name in names
    ], []


def run(test, prefix, log):
    start = time.time()
    command = [*prefix, "-n", str(test.ranks), *test.command]
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command,
            cwd=test.folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(test.limit)
        except subprocess.TimeoutExpired:
            code = None
            process.send_signal(signal.SIGTERM)  # mpirun takes its ranks along
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    seconds = round(time.time() - start, 1)
    text = open(log, errors="replace").read()
    if code is None:
        return "timeout", seconds, text
    if test.expect == "unittest":
        ran = re.search(r"^Ran [1-9]\d* tests? in ", text, re.M)  # the exit code says the rest
        return ("pass" if code == 0 and ran else "fail"), seconds, text
    if test.expect == "error":
        return ("pass" if code != 0 else "fail"), seconds, text
    said = re.search(r"^\s*No Errors\s*$", text, re.M | re.I)
    if test.expect.startswith("TestStatus"):  # must end with a code of its own
        good = code != 0 and (said or test.expect == "TestStatus")
    else:
        good = code == 0 and said
    return ("pass" if good else "fail"), seconds, text


def suite(arguments):
    if arguments.kind == "mpich":
        folders = arguments.folders.split() if arguments.folders else MPICH_FOLDERS
        tests, absent = mpich_tests(os.path.abspath(arguments.suite), folders, arguments.timeout)
    else:
        tests, absent = mpi4py_tests(
            os.path.abspath(arguments.suite), arguments.ranks, arguments.timeout
        )
    if arguments.only:
        tests = [test for test in tests if re.search(arguments.only, test.name)]
    logs = arguments.logs or tempfile.mkdtemp(prefix="foreign-suite-")
    os.makedirs(logs, exist_ok=True)
    results, start = [], time.time()
    for number, test in enumerate(tests):
        if test.ranks > arguments.ranks_max:
            continue
        log = os.path.join(logs, re.sub(r"[^\w.=-]+", "_", test.name)[:150] + ".txt")
        outcome, seconds, text = run(test, arguments.prefix, log)
        results.append(
            {"name": test.name, "ranks": test.ranks, "outcome": outcome, "seconds": seconds}
        )
        if outcome != "pass":
            results[-1]["log"] = log
            print(f"{outcome:8}{seconds:6.1f} s  {test.name}", flush=True)
            if arguments.verbose:
                print("    | " + "\n    | ".join(text.splitlines()[:15]), flush=True)
        if number % 50 == 49:
            print(f"… {number + 1} of {len(tests)}", flush=True)
        with open(arguments.out, "w") as file:
            json.dump(
                {
                    "kind": arguments.kind,
                    "mpirun": " ".join(arguments.prefix),
                    "absent": absent,
                    "seconds": round(time.time() - start),
                    "tests": results,
                },
                file,
                indent=1,
            )
    passed = sum(result["outcome"] == "pass" for result in results)
    print(
        f"{passed} of {len(results)} pass, {len(absent)} not built, "
        f"{time.time() - start:.0f} s, logs in {logs}"
    )
    return 0


def compare(arguments):
    def outcomes(path):
        with open(path) as file:
            return {test["name"]: test for test in json.load(file)["tests"]}

    base, other = outcomes(arguments.base), outcomes(arguments.other)
    worse = [
        name
        for name, test in base.items()
        if test["outcome"] == "pass" and name in other and other[name]["outcome"] != "pass"
    ]
    better = [
        name
        for name, test in base.items()
        if test["outcome"] != "pass" and name in other and other[name]["outcome"] == "pass"
    ]
    both = sum(
        test["outcome"] == "pass" and other.get(name, {}).get("outcome") == "pass"
        for name, test in base.items()
    )
    for name in worse:
        print(f"{other[name]['outcome']:8} {name}   {other[name].get('log', '')}")
    print(
        f"{both} pass in both, {len(worse)} pass only in {arguments.base}, "
        f"{len(better)} only in {arguments.other}"
        + "".join(f"\n  better: {name}" for name in better)
    )
    return 1 if worse else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("mpich", "mpi4py"):
        p = kinds.add_parser(kind)
        p.add_argument("--suite", required=True, metavar="DIR")
        p.add_argument("--out", required=True, metavar="FILE.json")
        p.add_argument("--logs", metavar="DIR")
        p.add_argument("--folders", metavar="NAMES", help="mpich: " + " ".join(MPICH_FOLDERS))
        p.add_argument("--only", metavar="REGEX")
        p.add_argument(
            "--timeout", type=int, default=60 if kind == "mpich" else 180, metavar="SECONDS"
        )
        p.add_argument("--ranks", type=int, default=3, help="mpi4py: how many ranks")
        p.add_argument("--ranks-max", type=int, default=10, help="skip tests that want more")
        p.add_argument("--verbose", action="store_true")
        p.add_argument("prefix", nargs="+", metavar="mpirun …")
        p.set_defaults(function=suite)
    p = kinds.add_parser("compare")
    p.add_argument("base")
    p.add_argument("other")
    p.set_defaults(function=compare)
    arguments = parser.parse_args()
    if getattr(arguments, "prefix", [""])[0] == "--":
        arguments.prefix = arguments.prefix[1:]
    return arguments.function(arguments)


if __name__ == "__main__":
    sys.exit(main())
