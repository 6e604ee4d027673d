#!/usr/bin/env python3
"""Times what PyTorch has for overlapped products, as `ordo bench overlap --suite` times ordo: async tensor parallelism
(torch.ops.symm_mem) and NCCL with cuBLAS, on the same shapes, with the same CSV columns.

    torchrun --nproc-per-node 2 tests/bench/overlap_peers.py --csv peers.csv

Sustained: warm-up before every subject, CUDA events, median over batches of back-to-back calls, the slowest rank's times; burst: the
median of 7 times three calls after 25 ms of rest. Needs PyTorch with CUDA and as many GPUs as ranks; without, it says so and ends
with 0. NVLink multicast stays off.
"""

import argparse
import csv
import faulthandler
import os
import statistics
import sys
import time

from peers import Nvml, Sampler

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

COLUMNS = (
    "impl,op,dtype,ranks,m,n,k,ms_median,ms_min,burst_ms,tflops,clock_mhz,watts,hidden,hidden_burst,plan".split(",")
)
# The rows of `ordo bench overlap --suite`: op, m, n, k of one rank's product.
SUITE = (
    ("all-gather-gemm", 4096, 7168, 4096),
    ("gemm-reduce-scatter", 4096, 4096, 7168),
    ("all-gather-gemm", 8192, 7168, 4096),
    ("gemm-reduce-scatter", 8192, 4096, 7168),
    ("all-gather-gemm", 8192, 14336, 8192),
    ("gemm-reduce-scatter", 8192, 8192, 14336),
    ("all-gather-gemm", 16384, 14336, 8192),
    ("gemm-reduce-scatter", 16384, 8192, 14336),
    ("gemm-reduce-scatter", 8192, 4096, 2048),
    ("all-gather-gemm", 2048, 7168, 4096),
    ("gemm-reduce-scatter", 2048, 4096, 7168),
    ("gemm-all-reduce", 8192, 4096, 7168),
    ("gemm-all-to-all", 4096, 8192, 4096),
    ("all-to-all-gemm", 4096, 4096, 8192),
)
BATCH_MS, FEWEST_BATCHES, WARM_STEP_MS = 1.0, 5, 20.0


class Bench:
    """Times calls on the current stream. Ranks decide alike: every figure that decides is the largest of any rank's."""

    def __init__(self, torch, dist, options):
        self.torch, self.dist, self.options, self.first = torch, dist, options, True
        self.nvml = Nvml(torch.cuda.current_device())

    def largest(self, values):
        together = self.torch.tensor(values, dtype=self.torch.float64, device="cuda")
        self.dist.all_reduce(together, op=self.dist.ReduceOp.MAX)
        return together.tolist()

    def batches(self, call, count, calls):
        """Milliseconds of one call, a figure a batch."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        self.largest([0.0])  # all start at once
        events[0].record()
        for event in events[1:]:
            for _ in range(calls):
                call()
            event.record()
        events[-1].synchronize()
        return self.largest([a.elapsed_time(b) / calls for a, b in zip(events, events[1:])])

    def warm_up(self, call, warm_ms):
        begin, calls = time.perf_counter(), 1
        while True:
            one = self.batches(call, 1, calls)[0]
            if self.largest([(time.perf_counter() - begin) * 1e3])[0] >= warm_ms:
                return one
            calls = min(max(int(WARM_STEP_MS / max(one, 1e-3)), 1), 2000)

    def measure(self, call):
        one = self.warm_up(call, self.options.first_warm_ms if self.first else self.options.warm_ms)
        self.first = False
        in_batch = max(1, round(BATCH_MS / one))
        count = max(FEWEST_BATCHES, int(self.options.measure_ms / (one * in_batch)))
        sampler = Sampler(self.nvml)
        times = self.batches(call, count, in_batch)
        clock, watts = sampler.finish()
        bursts = []
        for _ in range(7):
            self.torch.cuda.synchronize()
            time.sleep(0.025)
            bursts += self.batches(call, 1, 3)
        return {
            "ms_median": statistics.median(times),
            "ms_min": min(times),
            "burst_ms": statistics.median(bursts),
            "clock_mhz": clock,
            "watts": watts,
        }


def nccl_and_cublas(torch, dist, op, m, n, k, ranks):
    """(the exchange, the product, both in order) as calls."""

    def tensor(rows, columns):
        return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)

    weight = tensor(n, k).t()  # as torch.nn.Linear keeps it
    whole_a, d = tensor(m, k), tensor(m, n)
    product = lambda: torch.mm(whole_a, weight, out=d)
    if op == "all-gather-gemm":
        mine = tensor(m // ranks, k)
        exchange = lambda: dist.all_gather_into_tensor(whole_a, mine)
    elif op == "all-to-all-gemm":
        mine = tensor(ranks * m, k // ranks)  # without the rearrangement that the product needs
        exchange = lambda: dist.all_to_all_single(whole_a.view(-1), mine.view(-1))
    elif op == "gemm-reduce-scatter":
        mine = tensor(m // ranks, n)
        exchange = lambda: dist.reduce_scatter_tensor(mine, d)
    elif op == "gemm-all-to-all":
        mine = tensor(ranks * m, n // ranks)
        exchange = lambda: dist.all_to_all_single(mine.view(-1), d.view(-1))
    else:
        exchange = lambda: dist.all_reduce(d)

    def both():
        if op in ("all-gather-gemm", "all-to-all-gemm"):
            exchange()
            product()
        else:
            product()
            exchange()

    return exchange, product, both


def async_tensor_parallel(torch, op, m, n, k, ranks, group):
    """A call, or None where PyTorch has none."""
    ops = torch.ops.symm_mem
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t()
    if op == "all-gather-gemm":
        a = torch.randn(m // ranks, k, device="cuda", dtype=torch.bfloat16)
        return lambda: ops.fused_all_gather_matmul(a, [weight], gather_dim=0, group_name=group)
    if op == "gemm-reduce-scatter":
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        return lambda: ops.fused_matmul_reduce_scatter(a, weight, "sum", scatter_dim=0, group_name=group)
    return None


def text(value, digits):
    return "" if value is None else f"{value:.{digits}f}"


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", help="where rank 0 writes the CSV (standard output)")
    parser.add_argument("--rows", default="", help="only rows whose 'op m n k' holds this text")
    parser.add_argument("--first-warm-ms", type=float, default=2000, help="warm-up before the first subject (2000)")
    parser.add_argument("--warm-ms", type=float, default=300, help="warm-up before every other (300)")
    parser.add_argument("--measure-ms", type=float, default=300, help="measured time of a subject (300)")
    parser.add_argument("--limit-s", type=float, default=240, help="end with a traceback after so many seconds (240)")
    return parser.parse_args()


def main():
    options = parse_options()
    faulthandler.dump_traceback_later(options.limit_s, exit=True)
    try:
        import torch
        import torch.distributed as dist
        from torch.distributed import _symmetric_memory
    except ImportError as error:
        print(f"skipped: no PyTorch with symmetric memory ({error})", file=sys.stderr)
        return 0
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_RANK", 0))
    if ranks < 2 or torch.cuda.device_count() <= local:
        print("skipped: this needs torchrun with at least two ranks, and a GPU a rank", file=sys.stderr)
        return 0
    torch.cuda.set_device(local)
    torch.manual_seed(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    group = dist.group.WORLD.group_name
    if hasattr(_symmetric_memory, "enable_symm_mem_for_group"):
        _symmetric_memory.enable_symm_mem_for_group(group)
    bench, failures, begin = Bench(torch, dist, options), 0, time.perf_counter()
    file = None
    if rank == 0:
        file = open(options.csv, "w") if options.csv else sys.stdout
        version = ".".join(map(str, torch.cuda.nccl.version()))
        print(
            f"# PyTorch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {version}, {ranks} x {torch.cuda.get_device_name()}; "
            f"warm-up {options.warm_ms:g} ms ({options.first_warm_ms:g} before the first), measured {options.measure_ms:g} ms",
            file=file,
        )
        print(",".join(COLUMNS), file=file)

    def run(impl, row, call):
        nonlocal failures
        op, m, n, k = row
        try:
            call()
            torch.cuda.synchronize()
            refused = None
        except Exception as error:  # refuses this shape: the same on every rank
            refused = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if bench.largest([0.0 if refused is None else 1.0])[0]:
            failures += 1
            print(f"FAILED {impl} {op} {m} {n} {k}: {refused or 'on another rank'}", file=sys.stderr)
            return
        times = bench.measure(call)
        if rank != 0:
            return
        rate = None if impl == "torch-nccl" else 2 * m * n * k / times["ms_median"] * 1e-9
        csv.writer(file, lineterminator="\n").writerow(
            [impl, op, "bf16", ranks, m, n, k]
            + [text(times[key], 5) for key in ("ms_median", "ms_min", "burst_ms")]
            + [text(rate, 1), text(times["clock_mhz"], 0), text(times["watts"], 0), "", "", ""]
        )
        file.flush()

    for row in SUITE:
        if options.rows not in " ".join(map(str, row)):
            continue
        exchange, product, both = nccl_and_cublas(torch, dist, *row, ranks)
        run("torch-nccl", row, exchange)
        run("torch-cublas", row, product)
        run("torch-nccl-cublas", row, both)
        fused = async_tensor_parallel(torch, *row, ranks, group)
        if fused is not None:
            run("torch-async-tp", row, fused)
        del exchange, product, both, fused
        torch.cuda.empty_cache()
    if rank == 0:
        print(f"overlap_peers: {failures} failed, {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
