#!/usr/bin/env python3
"""Makes a Markdown table and an SVG plot from a CSV that run.sh wrote: NAME.csv -> NAME.md, NAME.svg.

Figures measured in another run come only from --other (columns as in sustained FlashAttention-3 / DASH measurements: impl, variant,
hdim, causal, det, seqlen, heads, kv_heads, tflops_median) and are labelled so. With --other-cublas, the TFLOP/s that cuBLAS 8192^3
reached in that run, ratios to them are scaled by this run's cuBLAS over that run's: cards and days differ.
"""

import argparse
import csv
import math
import pathlib
import sys

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
PANELS = [(head_dim, causal) for head_dim in (64, 128) for causal in (0, 1)]
SUITE_CELLS = [(head_dim, causal, seqlen) for head_dim, causal in PANELS for seqlen in LENGTHS]
GROUPED = {kv_heads: (f"32/{kv_heads} heads", 128, 1, 8192) for kv_heads in (8, 4, 32)}  # of 32 query heads


def read_rows(path):
    comments, lines = [], []
    with open(path) as file:
        for line in file:
            (comments if line.startswith("#") else lines).append(line.rstrip("\n"))
    return comments, list(csv.DictReader(line for line in lines if line))


def cell_of(row):
    heads, kv_heads, head_dim, seqlen = (int(row[key]) for key in ("heads", "kv_heads", "head_dim", "seqlen"))
    causal = int(row["causal"])
    if (head_dim, causal, seqlen) == GROUPED[32][1:] and heads == 32:
        return GROUPED.get(kv_heads)
    return head_dim, causal, seqlen


class Best:
    """The fastest row of each (series, cell)."""

    def __init__(self):
        self.rows = {}

    def add(self, series, cell, tflops, label="", bits="", error=""):
        old = self.rows.get((series, cell))
        if old is None or tflops > old["tflops"]:
            self.rows[series, cell] = {"tflops": tflops, "label": label, "bits": bits, "error": error}

    def get(self, series, cell):
        row = self.rows.get((series, cell))
        return row["tflops"] if row else None

    def best(self, names, cell):
        values = [value for value in (self.get(name, cell) for name in names) if value]
        return max(values) if values else None

    def has(self, series):
        return any(name == series for name, _ in self.rows)


def load(rows):
    """(Best, cuBLAS TFLOP/s or None) of this run."""
    best, cublas = Best(), []
    for row in rows:
        tflops = float(row["tflops"])
        if row["impl"] == "cublas":
            cublas.append(tflops)
            continue
        series = row["accumulate"] if row["impl"] == "ordo" else row["impl"]
        if row["impl"] != "ordo" and row["accumulate"] == "deterministic":
            series += " deterministic"
        label = f"{row['plan_schedule']}, {row['cluster']}" if row["impl"] == "ordo" else ""
        if series in ("ordered", "exact") and row["same_bits"] == "0":
            print(f"left out, repeats differ: {row}", file=sys.stderr)
            continue
        if (cell := cell_of(row)) is not None:
            best.add(series, cell, tflops, label, row["same_bits"], row["max_rel_err"])
    return best, sum(cublas) / len(cublas) if cublas else None


def load_other(path, best):
    """Adds another run's FA3 and DASH as 'FA3', 'FA3 det.' and 'DASH' (its best variant)."""
    for row in read_rows(path)[1]:
        try:
            tflops = float(row["tflops_median"])
        except (ValueError, TypeError, KeyError):
            continue
        if not math.isfinite(tflops) or row["heads"] != row["kv_heads"]:
            continue
        series = {"fa3": "FA3 det." if row["det"] == "1" else "FA3", "dash": "DASH"}.get(row["impl"])
        if series:
            best.add(series, (int(row["hdim"]), int(row["causal"]), int(row["seqlen"])), tflops)


def geometric_mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))


def ratios(best, above, below, scale=1.0):
    """above / (below * scale) in each suite cell that has both."""
    out = {}
    for cell in SUITE_CELLS:
        a, b = best.best(above, cell), best.best(below, cell)
        if a and b:
            out[cell] = a / (b * scale)
    return out


def name_of(cell):
    if cell in GROUPED.values():
        return f"{cell[0]}, 128 causal 8192"
    return f"{cell[0]} {'causal' if cell[1] else 'full'} {cell[2]}"


def summary_line(title, values, reach):
    if not values:
        return None
    worst = min(values, key=values.get)
    return (
        f"| {title} | {geometric_mean(list(values.values())):.3f} | {values[worst]:.3f} ({name_of(worst)}) | {reach} |"
        if len(values) > 1
        else f"| {title} | {values[worst]:.3f} | | {reach} |"
    )


def summary(best, cublas, scale):
    deterministic, other = ("ordered", "exact"), " (another run)"
    lines = [
        summary_line("best deterministic ÷ ours `atomic`", ratios(best, deterministic, ("atomic",)), "worst ≥ 0.97"),
        summary_line("best deterministic ÷ cuDNN, same run", ratios(best, deterministic, ("cudnn",)), ""),
        summary_line("best deterministic ÷ FA2, same run", ratios(best, deterministic, ("fa2",)), ""),
        summary_line(f"best deterministic ÷ FA3{other}", ratios(best, deterministic, ("FA3",), scale), "mean ≥ 1.05, worst ≥ 0.97"),
        summary_line(f"`ordered` ÷ FA3{other}", ratios(best, ("ordered",), ("FA3",), scale), "mean ≥ 1.03"),
        summary_line(
            f"best deterministic ÷ better of FA3 det. and DASH{other}",
            ratios(best, deterministic, ("FA3 det.", "DASH"), scale),
            "every cell ≥ 1.05",
        ),
    ]
    longest = best.best(deterministic, (128, 0, 16384))
    if longest and cublas:
        lines.append(f"| 128 full 16384 ÷ cuBLAS 8192³, same run | {longest / cublas:.3f} | | ≥ 0.88 |")
    mha = best.best(deterministic, GROUPED[32])
    for kv_heads in (8, 4):
        if (gqa := best.best(deterministic, GROUPED[kv_heads])) and mha:
            lines.append(f"| 32/{kv_heads} heads ÷ 32/32 heads | {gqa / mha:.3f} | | ≥ 1.00 |")
    lines = [line for line in lines if line]
    return ["| ratio | geometric mean | worst | asked |", "| --- | --- | --- | --- |", *lines] if lines else []


def markdown(comments, best, cublas, scale, scaled):
    ours = [name for name in ("atomic", "ordered", "exact") if best.has(name)]
    peers = [name for name in ("cudnn", "fa2", "fa2 deterministic") if best.has(name)]
    others = [name for name in ("FA3", "FA3 det.", "DASH") if best.has(name)]
    titles = {"cudnn": "cuDNN", "fa2": "FA2", "fa2 deterministic": "FA2 det."}
    header = ["head_dim, mask, seqlen", *(f"ours `{n}`" for n in ours), *(titles[n] for n in peers), *(f"{n} †" for n in others)]
    if others:
        header.append("best det. ÷ FA3 †")
    out = ["TFLOP/s, whole backward, sustained. In brackets: schedule, CTAs a cluster.", ""]
    out += ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    for cell in [*SUITE_CELLS, *GROUPED.values()]:
        row = [name_of(cell)]
        for series in (*ours, *peers, *others):
            entry = best.rows.get((series, cell))
            label = f" ({entry['label']})" if entry and entry["label"] else ""
            row.append(f"{entry['tflops']:.0f}{label}" if entry else "")
        if others:
            mine, theirs = best.best(("ordered", "exact"), cell), best.get("FA3", cell)
            row.append(f"{mine / (theirs * scale):.3f}" if mine and theirs else "")
        if any(row[1:]):
            out.append("| " + " | ".join(row) + " |")
    if others:
        how = f"; ratios to them scaled by cuBLAS 8192³ of the two runs ({scale:.3f})" if scaled else "; ratios to them not scaled"
        out += ["", f"† measured in another run on another day{how}."]
    out += ["", *summary(best, cublas, scale), ""]
    if cublas:
        out += [f"cuBLAS 8192³ bf16 in this run: {cublas:.0f} TFLOP/s.", ""]
    out += [f"- {comment.lstrip('# ')}" for comment in comments]
    return "\n".join(out) + "\n"


# series: (title, colour, dash)
STYLES = {
    "atomic": ("ordo atomic", "#9aa5b1", "4 3"),
    "ordered": ("ordo ordered", "#0b6e4f", ""),
    "exact": ("ordo exact", "#2a9d8f", "8 3"),
    "cudnn": ("cuDNN", "#e76f51", ""),
    "fa2": ("FA2", "#b56576", ""),
    "FA3": ("FA3, another run", "#264653", "2 3"),
    "FA3 det.": ("FA3 deterministic, another run", "#7b2cbf", "2 3"),
    "DASH": ("DASH, another run", "#f4a261", "2 3"),
}
WIDTH, HEIGHT, MARGIN, LEGEND = 960, 700, 52, 46


class Panel:
    """One plot: TFLOP/s over sequence length, powers of two evenly spaced."""

    def __init__(self, index, top):
        self.width, self.height = WIDTH / 2, (HEIGHT - LEGEND) / 2
        self.left, self.up = (index % 2) * self.width, LEGEND + (index // 2) * self.height
        self.top = top

    def x(self, seqlen):
        return self.left + MARGIN + LENGTHS.index(seqlen) / (len(LENGTHS) - 1) * (self.width - 1.5 * MARGIN)

    def y(self, tflops):
        return self.up + self.height - 34 - tflops / self.top * (self.height - 64)

    def axes(self, title):
        yield f'<text x="{self.left + self.width / 2:.0f}" y="{self.up + 18:.0f}" text-anchor="middle" font-weight="bold">{title}</text>'
        for tflops in range(0, int(self.top) + 1, 100):
            y = self.y(tflops)
            yield f'<line x1="{self.x(LENGTHS[0]):.0f}" x2="{self.x(LENGTHS[-1]):.0f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e6ea"/>'
            yield f'<text x="{self.x(LENGTHS[0]) - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{tflops}</text>'
        for seqlen in LENGTHS:
            text = f"{seqlen // 1024}k" if seqlen >= 1024 else str(seqlen)
            yield f'<text x="{self.x(seqlen):.1f}" y="{self.y(0) + 18:.1f}" text-anchor="middle">{text}</text>'

    def line(self, points, colour, dash):
        path = " ".join(f"{self.x(seqlen):.1f},{self.y(tflops):.1f}" for seqlen, tflops in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
        for seqlen, tflops in points:
            yield f'<circle cx="{self.x(seqlen):.1f}" cy="{self.y(tflops):.1f}" r="2.5" fill="{colour}"/>'


def svg(best):
    series = [name for name in STYLES if best.has(name)]
    values = [best.get(name, cell) or 0 for name in series for cell in SUITE_CELLS]
    top = 100 * math.ceil(max([*values, 100]) / 100)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for i, name in enumerate(series):
        title, colour, dash = STYLES[name]
        x, y = 20 + (i % 4) * 235, 16 + (i // 4) * 18
        out += line_sample(x, y, colour, dash)
        out.append(f'<text x="{x + 36}" y="{y + 4}">{title}</text>')
    for index, (head_dim, causal) in enumerate(PANELS):
        panel = Panel(index, top)
        out += panel.axes(f"head_dim {head_dim}, {'causal' if causal else 'full'}: TFLOP/s over sequence length")
        for name in series:
            points = [(n, best.get(name, (head_dim, causal, n))) for n in LENGTHS]
            points = [(n, value) for n, value in points if value]
            if points:
                out += panel.line(points, *STYLES[name][1:])
    return "\n".join([*out, "</svg>", ""])


def line_sample(x, y, colour, dash):
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    yield f'<line x1="{x}" x2="{x + 30}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"{dashes}/>'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=pathlib.Path)
    parser.add_argument("--other", type=pathlib.Path, help="CSV of FA3 and DASH from another run")
    parser.add_argument("--other-cublas", type=float, help="TFLOP/s of cuBLAS 8192^3 in that run")
    options = parser.parse_args()
    comments, rows = read_rows(options.csv)
    best, cublas = load(rows)
    scale, scaled = 1.0, False
    if options.other:
        load_other(options.other, best)
        if options.other_cublas and cublas:
            scale, scaled = cublas / options.other_cublas, True
    text = markdown(comments, best, cublas, scale, scaled)
    options.csv.with_suffix(".md").write_text(text)
    options.csv.with_suffix(".svg").write_text(svg(best))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
