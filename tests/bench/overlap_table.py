#!/usr/bin/env python3
"""Reads the CSV of overlap.sh and prints one line a shape: what ordo took, over what, and whether each claim holds.

Claims: at most 1.01 of our GEMM beside a copy, at most 1.035 of our GEMM alone, and at least 1.06 times as fast as each peer, steady.
A shape whose exchange cannot hide (the planner says so, or it is marginal) may be up to 1.02 of the fastest peer.
"""

import csv
import sys

MARGINAL = {("gemm-reduce-scatter", "8192", "4096", "2048")}


def main():
    with open(sys.argv[1]) as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    shapes = {}
    for row in rows:
        shapes.setdefault((row["op"], row["m"], row["n"], row["k"]), {})[row["impl"]] = row
    print(
        f"{'op':>20} {'m':>6} {'n':>6} {'k':>6} {'ordo ms':>8} {'burst':>8} {'/gemm':>6} {'/beside':>7} {'/cublas':>7} "
        f"{'nccl+cublas':>11} {'torch':>6} {'asyncTP':>7} {'hidden':>6} {'burst':>6}  claims"
    )
    for shape, impls in shapes.items():
        ours = impls.get("ordo")
        if ours is None:
            continue
        ms = float(ours["ms_median"])

        def over(impl):  # ours / theirs
            return ms / float(impls[impl]["ms_median"]) if impl in impls else None

        def show(value, width, digits=3):
            return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"

        gemm, beside, cublas = over("ordo-gemm"), over("ordo-gemm-beside-copy"), over("cublas")
        faster = [None if x is None else 1 / x for x in map(over, ("nccl-cublas", "torch-nccl-cublas", "torch-async-tp"))]
        peers = [x for x in faster if x is not None]
        if shape in MARGINAL:
            holds = [all(x >= 1 / 1.02 for x in peers)]
        else:
            holds = [beside is None or beside <= 1.01, gemm is None or gemm <= 1.035, all(x >= 1.06 for x in peers)]
        print(
            f"{shape[0]:>20} {shape[1]:>6} {shape[2]:>6} {shape[3]:>6} {ms:8.4f} {float(ours['burst_ms']):8.4f} {show(gemm, 6)} "
            f"{show(beside, 7)} {show(cublas, 7)} {show(faster[0], 11)} {show(faster[1], 6)} {show(faster[2], 7)} "
            f"{ours['hidden'] or '-':>6} {ours['hidden_burst'] or '-':>6}  {' '.join('yes' if h else 'NO' for h in holds)}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
