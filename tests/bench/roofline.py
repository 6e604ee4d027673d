#!/usr/bin/env python3
"""roofline.py NAME [OPTION...]: what bounds the shipped kernels, read by Nsight Compute: results/NAME-roofline.csv and .md.

Profiles one backward of each case with `ncu --clock-control none`: shares of peak over the kernel's elapsed cycles of the tensor
pipe, the shared-memory and L1 data pipe (bank reads and writes), L2, DRAM and the issue slots. Needs ncu and a GPU whose counters
the user may read. Without a GPU it says so and ends with 0.
"""

import argparse
import csv
import io
import pathlib
import shutil
import subprocess
import sys

SHARE = "avg.pct_of_peak_sustained_elapsed"
METRICS = {
    "tensor": f"sm__pipe_tensor_cycles_active.{SHARE}",
    "l1_reads": f"l1tex__data_bank_reads.{SHARE}",
    "l1_writes": f"l1tex__data_bank_writes.{SHARE}",
    "l1_pipe": f"l1tex__data_pipe_lsu_wavefronts.{SHARE}",
    "l1": f"l1tex__throughput.{SHARE}",
    "l2": f"lts__throughput.{SHARE}",
    "dram": f"dram__throughput.{SHARE}",
    "issue": f"sm__inst_issued.{SHARE}",
    "us": "gpu__time_duration.sum",
}
BOUNDS = {"tensor": "tensor pipe", "shared": "shared memory", "l2": "L2", "dram": "DRAM", "issue": "issue slots"}
COLUMNS = ["cell", "accumulate", "schedule", "kernel", "us", "tensor", "shared", "l1", "l2", "dram", "issue", "bound", "plan"]
# Where no unit is busier than this, latency and waiting bound the kernel: no pipe does.
BUSY = 55.0
IN_MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}


def cases(ordo, cells, accumulate):
    """(cell, problem, plan) of `ordo bench --suite --list`."""
    listed = subprocess.run(
        [ordo, "bench", "--suite", "--list", f"--cells={cells}", f"--accumulate={accumulate}"], check=True, capture_output=True, text=True
    ).stdout
    cell = problem = None
    for line in listed.splitlines():
        if line.startswith("    "):
            yield cell, problem, line.strip()
        else:
            cell, problem = line.split("  ", 1)


def fields(text):
    return dict(word.split("=", 1) for word in text.split()[1:])


def command(ordo, problem, plan, cache):
    shape = fields(problem)
    options = [f"--{key.replace('_', '-')}={shape[key]}" for key in ("batch", "seqlen_q", "seqlen_k", "heads", "kv_heads", "head_dim", "mask", "dtype")]
    # A launch or two of warm-up and a handful of measured ones: the last of each kernel counts.
    return [ordo, "bench", "attention-backward", *options, "--plan", plan, "--warmup", "0", "--repeats", "1", "--cache", cache]


def profile(ncu, line):
    """{kernel: {metric: value}} of the last launch of each kernel."""
    done = subprocess.run(
        [ncu, "--csv", "--page", "raw", "--clock-control", "none", "--kernel-name", "regex:^ordo_(main|preprocess|convert|scales)$",
         "--metrics", ",".join(METRICS.values()), *line],
        capture_output=True, text=True,
    )
    table = [row for row in done.stdout.splitlines() if row.startswith('"')]
    if done.returncode != 0 or len(table) < 3:
        raise RuntimeError(f"ncu failed ({done.returncode}): {(done.stderr or done.stdout).strip()[-800:]}")
    rows = list(csv.DictReader(io.StringIO("\n".join(table))))
    units, rows = rows[0], rows[1:]
    kernels = {}
    for row in rows:
        values = {}
        for name, metric in METRICS.items():
            try:
                values[name] = float(row[metric].replace(",", ""))
            except (KeyError, ValueError, AttributeError):
                values[name] = None
        if values["us"] is not None:
            values["us"] *= IN_MICROSECONDS.get(units[METRICS["us"]], 1.0)
        kernels[row["Kernel Name"].split("(")[0]] = values
    return kernels


def shared_share(values):
    """The data pipe: its banks read and write at once at most one of 128 bytes a cycle each, so the busier counts."""
    known = [values[key] for key in ("l1_reads", "l1_writes", "l1_pipe") if values[key] is not None]
    return max(known) if known else None


def row_of(cell, plan, kernel, values):
    plan_fields = fields(plan)
    row = {"cell": cell, "accumulate": plan_fields["accumulate"], "schedule": plan_fields["schedule"], "kernel": kernel, "plan": plan}
    row.update({key: values[key] for key in ("us", "tensor", "l1", "l2", "dram", "issue")}, shared=shared_share(values))
    shares = {key: row[key] for key in BOUNDS if row[key] is not None}
    busiest = max(shares, key=shares.get) if shares else None
    row["bound"] = BOUNDS[busiest] if busiest and shares[busiest] >= BUSY else "latency and waiting"
    return row


def markdown(rows, comments):
    titles = ["cell", "accumulate, schedule", "kernel", "µs under ncu", "tensor", "shared memory", "L1", "L2", "DRAM", "issue slots", "bound by"]
    lines = ["Shares of peak over elapsed cycles, per cent, by Nsight Compute, clocks as they are.", "",
             "| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    number = lambda value, digits=0: "" if value is None else f"{value:.{digits}f}"
    for row in rows:
        lines.append(
            "| " + " | ".join([row["cell"], f"{row['accumulate']}, {row['schedule']}", row["kernel"], number(row["us"], 1),
                               *(number(row[key]) for key in ("tensor", "shared", "l1", "l2", "dram", "issue")), row["bound"]]) + " |")
    return "\n".join([*lines, "", *(f"- {comment}" for comment in comments)]) + "\n"


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--ordo", default="ordo", help="the command (ordo)")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--cells", default="-512,-4096,-16384,gqa", help="as ordo bench --cells")
    parser.add_argument("--accumulate", default="ordered,exact", help="comma-separated")
    parser.add_argument("--out", type=pathlib.Path, default=here / "results")
    options = parser.parse_args()
    if shutil.which("nvidia-smi") is None or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode != 0:
        print("skipped: no GPU")
        return 0
    if shutil.which(options.ncu) is None:
        print(f"roofline.py: no {options.ncu}; Nsight Compute comes with the CUDA toolkit", file=sys.stderr)
        return 3
    options.out.mkdir(parents=True, exist_ok=True)
    facts = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader"], capture_output=True, text=True)
    version = subprocess.run([options.ncu, "--version"], capture_output=True, text=True).stdout.strip().splitlines()
    comments = [f"device: {facts.stdout.strip().splitlines()[0]}", f"ncu: {version[-1] if version else 'unknown'}", f"command: {' '.join(sys.argv)}"]
    rows, failed = [], 0
    csv_path = options.out / f"{options.name}-roofline.csv"
    with open(csv_path, "w") as file:
        file.writelines(f"# {comment}\n" for comment in comments)
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for cell, problem, plan in cases(options.ordo, options.cells, options.accumulate):
            try:
                kernels = profile(options.ncu, command(options.ordo, problem, plan, str(options.out / f".{options.name}-kernels.db")))
            except RuntimeError as error:
                failed += 1
                print(f"FAILED {cell} {plan}\n  {error}", file=sys.stderr)
                continue
            for kernel, values in kernels.items():
                rows.append(row_of(cell, plan, kernel, values))
                writer.writerow(rows[-1])
            file.flush()
            print(f"{cell} {fields(plan)['accumulate']}: {rows[-1]['bound']}", file=sys.stderr)
    for leftover in options.out.glob(f".{options.name}-kernels.db*"):
        leftover.unlink()
    (options.out / f"{options.name}-roofline.md").write_text(markdown(rows, comments))
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
