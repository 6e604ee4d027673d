#!/usr/bin/env python3
"""Makes attention_layer.safetensors: the tensors of one attention layer and the gradient that flows back into it.

    python3 make_attention_layer.py [attention_layer.safetensors]

The input is real text, the opening of Herman Melville's Moby-Dick (1851, public domain), one token a byte. The model is one layer
with weights drawn from a fixed seed (nothing is trained, nothing is downloaded):

    x = embedding[byte]                               [seqlen, width], rows of unit RMS
    q, k, v = RoPE(x Wq), RoPE(x Wk), x Wv            4 query heads, 2 KV heads, head_dim 64
    o = softmax(q k^T / sqrt(64), causal) v           lse is the softmax' log-sum-exp
    logits = (x + o Wo) Wout
    loss = mean cross entropy of the next byte

q, k, v are rounded to bf16 before the attention, o after it, as a bf16 training step has them; do = dloss/do is the gradient of that
loss, worked out below, and rounded to bf16. Needs only Python's standard library; takes a few seconds.
"""
import json
import math
import random
import struct
import sys

TEXT = (
    "Call me Ishmael. Some years ago--never mind how long precisely--having little or no money in my purse, and nothing "
    "particular to interest me on shore, I thought I would sail about a little and see the watery part of the world. It is a "
    "way I have of driving off the spleen and regulating the circulation. Whenever I find myself growing grim about the mouth; "
    "whenever it is a damp, drizzly November in my soul;"
)
WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, SEED = 128, 4, 2, 64, 128, 1851
LENGTH = 353  # not a multiple of any tile


def round_bf16(x):
    """The bits of x as bf16, to nearest, ties to even (x finite)."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def to_bf16(rows):
    """Rows of floats as bf16 would hold them."""
    return [[struct.unpack("<f", struct.pack("<I", round_bf16(x) << 16))[0] for x in row] for row in rows]


def matrix(random_numbers, rows, columns, gain=1.0):
    """Uniform entries whose variance is gain^2 / rows: x W keeps the size of x, times gain."""
    limit = gain * math.sqrt(3.0 / rows)
    return [[random_numbers.uniform(-limit, limit) for _ in range(columns)] for _ in range(rows)]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def multiply(a, b):
    columns = list(zip(*b))
    return [[dot(row, column) for column in columns] for row in a]


def transposed(a):
    return [list(column) for column in zip(*a)]


def rotate(rows, heads):
    """Rotary position embedding, base 10000, on the two halves of each head."""
    half = HEAD_DIM // 2
    out = []
    for position, row in enumerate(rows):
        new = list(row)
        for head in range(heads):
            for i in range(half):
                angle = position * 10000.0 ** (-i / half)
                a, b = row[head * HEAD_DIM + i], row[head * HEAD_DIM + half + i]
                new[head * HEAD_DIM + i] = a * math.cos(angle) - b * math.sin(angle)
                new[head * HEAD_DIM + half + i] = a * math.sin(angle) + b * math.cos(angle)
        out.append(new)
    return out


def attention(q, k, v):
    """o [seqlen][heads * head_dim] and lse [heads][seqlen]."""
    scale = 1 / math.sqrt(HEAD_DIM)
    o = [[0.0] * (HEADS * HEAD_DIM) for _ in q]
    lse = [[0.0] * len(q) for _ in range(HEADS)]
    for head in range(HEADS):
        kv = head * KV_HEADS // HEADS
        q_cut, kv_cut = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM), slice(kv * HEAD_DIM, (kv + 1) * HEAD_DIM)
        keys, values = [row[kv_cut] for row in k], transposed([row[kv_cut] for row in v])
        for i, row in enumerate(q):
            s = [scale * dot(row[q_cut], key) for key in keys[: i + 1]]
            top = max(s)
            e = [math.exp(x - top) for x in s]
            total = sum(e)
            lse[head][i] = top + math.log(total)
            p = [x / total for x in e]
            o[i][q_cut] = [dot(p, column) for column in values]  # zip stops at the keys that row i sees
    return o, lse


def loss_gradient(hidden, output, tokens):
    """The loss, and its gradient with respect to the hidden rows; `output` is [vocabulary][width]. The last position has no next byte."""
    logits = multiply(hidden, transposed(output))
    count = len(tokens) - 1
    loss, d_logits = 0.0, []
    for i, row in enumerate(logits):
        if i == count:
            d_logits.append([0.0] * VOCABULARY)
            continue
        top = max(row)
        e = [math.exp(x - top) for x in row]
        total = sum(e)
        loss += (top + math.log(total) - row[tokens[i + 1]]) / count
        d_row = [x / total / count for x in e]
        d_row[tokens[i + 1]] -= 1.0 / count
        d_logits.append(d_row)
    return loss, multiply(d_logits, output)


def write_safetensors(path, tensors, metadata):
    header, blob = {"__metadata__": metadata}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + blob)


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "attention_layer.safetensors"
    tokens = list(TEXT.encode("ascii"))[:LENGTH]
    numbers = random.Random(SEED)
    embedding = matrix(numbers, VOCABULARY, WIDTH, math.sqrt(VOCABULARY))  # entries of unit variance
    # Queries and keys a little larger than their input give logits of about +-2: rows that look at some tokens more than at others.
    wq, wk = matrix(numbers, WIDTH, HEADS * HEAD_DIM, 1.5), matrix(numbers, WIDTH, KV_HEADS * HEAD_DIM, 1.5)
    wv, wo = matrix(numbers, WIDTH, KV_HEADS * HEAD_DIM), matrix(numbers, HEADS * HEAD_DIM, WIDTH)
    output = matrix(numbers, WIDTH, VOCABULARY)
    x = [embedding[token] for token in tokens]
    q, k, v = to_bf16(rotate(multiply(x, wq), HEADS)), to_bf16(rotate(multiply(x, wk), KV_HEADS)), to_bf16(multiply(x, wv))
    o, lse = attention(q, k, v)
    o = to_bf16(o)
    hidden = [[a + b for a, b in zip(row, add)] for row, add in zip(x, multiply(o, wo))]
    loss, d_hidden = loss_gradient(hidden, transposed(output), tokens)
    d_o = multiply(d_hidden, transposed(wo))

    bf16 = lambda rows, heads: ("BF16", [1, len(rows), heads, HEAD_DIM], b"".join(struct.pack(f"<{len(row)}H", *map(round_bf16, row)) for row in rows))
    tensors = {
        "q": bf16(q, HEADS), "k": bf16(k, KV_HEADS), "v": bf16(v, KV_HEADS), "o": bf16(o, HEADS), "do": bf16(d_o, HEADS),
        "lse": ("F32", [1, HEADS, len(tokens)], b"".join(struct.pack(f"<{len(row)}f", *row) for row in lse)),
    }
    write_safetensors(path, tensors, {
        "origin": "opening of Moby-Dick (Herman Melville, 1851, public domain), bytes; made by make_attention_layer.py",
        "mask": "causal", "scale": "0.125", "loss": f"{loss:.6f}",
    })
    print(f"{path}: {len(tokens)} tokens, loss {loss:.4f} nats a byte (uniform: {math.log(VOCABULARY):.4f})")


if __name__ == "__main__":
    main()
