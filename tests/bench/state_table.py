#!/usr/bin/env python3
"""Table of both forms of the schedule's state, in the loader and in the consumers: registers of a consumer, spills, speed.

    ordo audit --json --filter dtype=bf16 --filter accumulate=ordered --filter 'group=1 ' > audit.json      # no GPU
    ordo bench --suite --plans schedules --accumulate ordered --no-checks --csv producer.csv
    ordo bench --suite --plans schedules --accumulate ordered --no-checks --allow-spills --set schedule_state=consumer --csv consumer.csv
    python3 tests/bench/state_table.py audit.json producer.csv consumer.csv > schedule_state.md

The CSVs may be left out: then the table has registers and spills alone.
"""

import argparse
import csv
import json
import pathlib

LENGTHS = ("1024", "4096", "16384")
STATES = ("producer", "consumer")


def fields(plan):
    return dict(word.split("=", 1) for word in plan.split()[1:])


def kernel_of(plan):
    """What tells the rows of the table apart."""
    return (int(plan["head_dim"]), int(plan["cluster"]), plan["mask"], plan["schedule"])


def read_audit(path):
    rows = {}
    for row in json.loads(path.read_text())["rows"]:
        plan = fields(row["plan"])
        usual = {"dtype": "bf16", "group": "1", "accumulate": "ordered", "consumer_registers": "0", "static_shape": "none"}
        if plan["mask"] in ("full", "causal") and all(plan[key] == value for key, value in usual.items()):
            rows[kernel_of(plan), plan["schedule_state"]] = (row["actual_registers"], row["actual_spill_bytes"])
    return rows


def read_speeds(paths):
    speeds = {}
    for path in paths:
        lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
        for row in csv.DictReader(lines):
            if row["impl"] != "ordo" or row["heads"] != row["kv_heads"] or int(row["batch"]) * int(row["seqlen"]) != 16384:
                continue
            plan = fields(row["plan"])
            speeds[kernel_of(plan), plan["schedule_state"], row["seqlen"]] = float(row["tflops"])
    return speeds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("audit", type=pathlib.Path)
    parser.add_argument("csv", type=pathlib.Path, nargs="*")
    options = parser.parse_args()
    audit, speeds = read_audit(options.audit), read_speeds(options.csv)
    lengths = LENGTHS if speeds else ()
    columns = ["registers", "spill bytes"] + [f"TFLOP/s {length}" for length in lengths]
    print("| head_dim, CTAs a cluster, mask, schedule | " + " | ".join(f"{s}: {c}" for s in STATES for c in columns) + " |")
    print("| --- |" + " --- |" * (len(STATES) * len(columns)))
    for kernel in sorted({kernel for kernel, _ in audit}, key=lambda k: (-k[0], -k[1], k[2:])):
        cells = []
        for state in STATES:
            cells += [str(value) for value in audit.get((kernel, state), ("", ""))]
            cells += [f"{speeds[kernel, state, n]:.0f}" if (kernel, state, n) in speeds else "" for n in lengths]
        print(f"| {kernel[0]}, {kernel[1]}, {kernel[2]}, {kernel[3]} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
