#!/usr/bin/env python3
"""Times the attention backward of cuDNN and FlashAttention-2 through PyTorch, and cuBLAS, as `ordo bench --suite` times ordo.

Same cells, same columns, sustained: warm-up before every case, CUDA events, median over batches of back-to-back calls, clocks and
watts from the middle half of the measured time. Needs PyTorch (2.5 or later) with CUDA; without a GPU it says so and ends with 0.
"""

import argparse
import csv
import ctypes
import faulthandler
import math
import statistics
import sys
import threading
import time

COLUMNS = (
    "impl,plan_schedule,accumulate,cluster,head_dim,causal,batch,seqlen,heads,kv_heads,ms_median,ms_min,tflops,clock_mhz,watts,"
    "same_bits,max_rel_err"
).split(",")
TOKENS, HIDDEN = 16384, 2048
BATCH_MS, FEWEST_BATCHES, WARM_STEP_MS = 1.0, 11, 20.0


def cells():
    """(name, head_dim, causal, batch, seqlen, heads, kv_heads) of the suite."""
    for head_dim in (64, 128):
        for causal in (False, True):
            seqlen = 512
            while seqlen <= TOKENS:
                name = f"hd{head_dim}-{'causal' if causal else 'full'}-{seqlen}"
                yield name, head_dim, causal, TOKENS // seqlen, seqlen, HIDDEN // head_dim, HIDDEN // head_dim
                seqlen *= 2
    yield "gqa4-hd128-causal-8192", 128, True, 1, 8192, 32, 8
    yield "gqa8-hd128-causal-8192", 128, True, 1, 8192, 32, 4
    yield "mha32-hd128-causal-8192", 128, True, 1, 8192, 32, 32


class Nvml:
    """SM clock (MHz) and power (W) of a device; reads give None where NVML is not there or refuses."""

    def __init__(self, index=0):
        self.device = None
        try:
            self.library = ctypes.CDLL("libnvidia-ml.so.1")
            device = ctypes.c_void_p()
            if self.library.nvmlInit_v2() == 0 and self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0:
                self.device = device
        except OSError:
            pass

    def read(self):
        clock, milliwatts = ctypes.c_uint(), ctypes.c_uint()
        if self.device is None or self.library.nvmlDeviceGetClockInfo(self.device, 1, ctypes.byref(clock)) != 0:
            return None
        if self.library.nvmlDeviceGetPowerUsage(self.device, ctypes.byref(milliwatts)) != 0:
            return None
        return clock.value, milliwatts.value * 1e-3


class Sampler(threading.Thread):
    """Reads clocks and watts until finish()."""

    def __init__(self, nvml):
        super().__init__(daemon=True)
        self.nvml, self.samples, self.ended = nvml, [], threading.Event()
        self.begin = time.perf_counter()
        self.start()

    def run(self):
        while not self.ended.is_set():
            state = self.nvml.read()
            if state is None:
                return
            self.samples.append((time.perf_counter() - self.begin, *state))
            time.sleep(0.005)

    def finish(self):
        """(clock, watts) over the middle half of the time, or (None, None)."""
        end = time.perf_counter() - self.begin
        self.ended.set()
        self.join()
        middle = [s for s in self.samples if 0.25 * end <= s[0] <= 0.75 * end]
        if not middle:
            return None, None
        return statistics.mean(s[1] for s in middle), statistics.mean(s[2] for s in middle)


class Bench:
    """Times calls on the current stream."""

    def __init__(self, torch, options):
        self.torch, self.options, self.nvml, self.first = torch, options, Nvml(), True

    def events(self, count):
        return [self.torch.cuda.Event(enable_timing=True) for _ in range(count)]

    def warm_up(self, call, warm_ms):
        begin, calls, one = time.perf_counter(), 1, 0.0
        start, end = self.events(2)
        while True:
            start.record()
            for _ in range(calls):
                call()
            end.record()
            end.synchronize()
            one = start.elapsed_time(end) / calls
            if (time.perf_counter() - begin) * 1e3 >= warm_ms:
                return one
            calls = min(max(int(WARM_STEP_MS / max(one, 1e-3)), 1), 2000)

    def measure(self, call):
        """dict of ms_median, ms_min, clock_mhz, watts."""
        one = self.warm_up(call, self.options.first_warm_ms if self.first else self.options.warm_ms)
        self.first = False
        in_batch = max(1, round(BATCH_MS / one))
        batches = max(FEWEST_BATCHES, int(self.options.measure_ms / (one * in_batch)))
        events = self.events(batches + 1)
        sampler = Sampler(self.nvml)
        events[0].record()
        for event in events[1:]:
            for _ in range(in_batch):
                call()
            event.record()
        events[-1].synchronize()
        clock, watts = sampler.finish()
        times = [a.elapsed_time(b) / in_batch for a, b in zip(events, events[1:])]
        return {"ms_median": statistics.median(times), "ms_min": min(times), "clock_mhz": clock, "watts": watts}


def gemm(torch, bench, size=8192):
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    row = bench.measure(lambda: torch.mm(a, b, out=out))
    return {"impl": "cublas", "plan_schedule": f"gemm{size}", "tflops": 2 * size**3 / row["ms_median"] * 1e-9, **row}


def layer(torch, head_dim, causal, batch, seqlen, heads, kv_heads, backend):
    """A call that computes dq, dk, dv with one backend, and its tensors."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    import torch.nn.functional as F

    def made(count):  # [batch, seqlen, heads, head_dim], as models keep it
        x = torch.randn(batch, seqlen, count, head_dim, device="cuda", dtype=torch.bfloat16)
        return x.transpose(1, 2).detach().requires_grad_()

    q, k, v = made(heads), made(kv_heads), made(kv_heads)
    which = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}[backend]
    grouped = {"enable_gqa": True} if heads != kv_heads else {}
    with sdpa_kernel([which]):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped)
    d_out = torch.randn_like(out)
    return (lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)), (q, k, v, d_out)


def reference(torch, q, k, v, d_out, causal):
    """dq, dk, dv in fp64."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(2, 3) / math.sqrt(q.shape[3])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    out = scores.softmax(3) @ v.repeat_interleave(group, 1)
    return torch.autograd.grad(out, (q, k, v), d_out.double())


def max_relative_error(torch, cell, backend):
    _, head_dim, causal, _, seqlen, heads, kv_heads = cell
    group = heads // kv_heads
    small_kv = 4 if group == 1 else 1
    call, (q, k, v, d_out) = layer(torch, head_dim, causal, 1, min(seqlen - 12, 1000), small_kv * group, small_kv, backend)
    wanted = reference(torch, q, k, v, d_out, causal)
    return max(((x.double() - y).norm() / y.norm()).item() for x, y in zip(call(), wanted))


def same_bits(torch, call):
    first = call()
    return all(torch.equal(x, y) for _ in range(5) for x, y in zip(first, call()))


def deterministic_call(torch, call):
    """The same call in PyTorch's deterministic mode, which only it needs: in that mode cuBLAS refuses the reference's products."""
    torch.utils.deterministic.fill_uninitialized_memory = False  # else every output is filled with NaN first, in the time measured

    def run():
        torch.use_deterministic_algorithms(True)
        try:
            return call()
        finally:
            torch.use_deterministic_algorithms(False)

    return run


def attention(torch, bench, cell, backend, deterministic):
    _, head_dim, causal, batch, seqlen, heads, kv_heads = cell
    call, _ = layer(torch, head_dim, causal, batch, seqlen, heads, kv_heads, backend)
    if deterministic:
        call = deterministic_call(torch, call)
    row = bench.measure(call)
    flops = 10 * batch * heads * seqlen**2 * head_dim / (2 if causal else 1)
    row.update(
        impl=backend,
        accumulate="deterministic" if deterministic else "atomic",
        head_dim=head_dim,
        causal=int(causal),
        batch=batch,
        seqlen=seqlen,
        heads=heads,
        kv_heads=kv_heads,
        tflops=flops / row["ms_median"] * 1e-9,
        same_bits=int(same_bits(torch, call)),
        max_rel_err=max_relative_error(torch, cell, backend),
    )
    return row


FORMATS = {"ms_median": ".5f", "ms_min": ".5f", "tflops": ".1f", "clock_mhz": ".0f", "watts": ".0f", "max_rel_err": ".2e"}


def text_of(row):
    return [
        "" if row.get(column) is None else format(row[column], FORMATS[column]) if column in FORMATS else str(row[column])
        for column in COLUMNS
    ]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--warm-ms", type=float, default=1200)
    parser.add_argument("--first-warm-ms", type=float, default=2000)
    parser.add_argument("--measure-ms", type=float, default=300)
    parser.add_argument("--cells", default="", help="only cells whose name holds one of these comma-separated parts")
    parser.add_argument("--deterministic", action="store_true", help="also FA2's deterministic backward (cuDNN has none)")
    parser.add_argument("--csv", help="file (stdout)")
    parser.add_argument("--limit-s", type=float, default=400, help="end with a traceback after this time")
    return parser.parse_args()


def main():
    options = parse_options()
    faulthandler.dump_traceback_later(options.limit_s, exit=True)
    try:
        import torch
    except ImportError as error:
        print(f"skipped: no PyTorch ({error})", file=sys.stderr)
        return 0
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 0
    torch.manual_seed(0)
    bench, failures, begin = Bench(torch, options), 0, time.perf_counter()
    file = open(options.csv, "w") if options.csv else sys.stdout
    writer = csv.writer(file, lineterminator="\n")
    print(
        f"# PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, "
        f"{torch.cuda.get_device_name()}; warm-up {options.warm_ms:g} ms ({options.first_warm_ms:g} before the first), "
        f"measured {options.measure_ms:g} ms",
        file=file,
    )
    writer.writerow(COLUMNS)

    def run(name, make_row):
        nonlocal failures
        try:
            row = make_row()
            writer.writerow(text_of(row))
            file.flush()
            print(f"{name}: {row['tflops']:.0f} TFLOP/s", file=sys.stderr)
        except Exception as error:  # a backend that refuses a shape must not end the run
            failures += 1
            print(f"FAILED {name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", file=sys.stderr)
        torch.cuda.synchronize()

    parts = [part for part in options.cells.split(",") if part]
    run("cublas", lambda: gemm(torch, bench))
    for cell in cells():
        if parts and not any(part in cell[0] for part in parts):
            continue
        for backend, deterministic in (("cudnn", False), ("fa2", False), ("fa2", True)):
            if deterministic and not options.deterministic:
                continue
            run(f"{cell[0]} {backend}{' deterministic' if deterministic else ''}", lambda: attention(torch, bench, cell, backend, deterministic))
    run("cublas", lambda: gemm(torch, bench))  # again: how far the card drifted
    print(f"peers: {failures} failed, {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
