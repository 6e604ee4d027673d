"""On a machine with a Hopper GPU: python -m unittest discover -s tests. Skipped elsewhere."""

import hashlib
import json
import os
import subprocess
import sys
import unittest

import torch
import torch.nn.functional as F

GPU = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
if GPU:
    from ordo_attention import ordo_attention, replace_sdpa, supports


def inputs(batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    make = lambda h, n: torch.randn(batch, n, h, head_dim, device="cuda", dtype=dtype, generator=generator).transpose(1, 2)
    q, k, v = make(heads, seqlen_q), make(kv_heads, seqlen_k), make(kv_heads, seqlen_k)
    return [x.detach().requires_grad_() for x in (q, k, v)], make(heads, seqlen_q)


def gradients(attention, tensors, grad):
    return torch.autograd.grad(attention(*tensors), tensors, grad)


def exact_gradients(tensors, grad, causal):
    """fp64, from the definition."""
    q, k, v = (x.detach().double().requires_grad_() for x in tensors)
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) / q.shape[3] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    out = scores.softmax(-1) @ v.repeat_interleave(group, 1)
    return torch.autograd.grad(out, (q, k, v), grad.double())


def digest(tensors):
    sha = hashlib.sha256()
    for x in tensors:
        sha.update(x.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return sha.hexdigest()


@unittest.skipUnless(GPU, "needs a Hopper GPU")
class Attention(unittest.TestCase):
    def check(self, got, expected):
        # With one key dQ and dK are zero but for rounding, so they are held against dV too.
        floor = 1e-2 * expected[2].norm()
        for name, x, ref in zip(("dq", "dk", "dv"), got, expected):
            self.assertLess(((x.double() - ref).norm() / torch.maximum(ref.norm(), floor)).item(), 6e-3, name)

    def test_gradients_match_fp64(self):
        for shape in ((2, 4, 4, 512, 512, 128), (1, 8, 2, 300, 300, 64), (2, 3, 1, 129, 129, 128), (1, 2, 2, 64, 500, 64), (1, 1, 1, 1, 1, 128)):
            for dtype in (torch.bfloat16, torch.float16):
                for causal in (False, True):
                    if causal and shape[3] != shape[4]:
                        continue
                    with self.subTest(shape=shape, dtype=dtype, causal=causal):
                        tensors, grad = inputs(*shape, dtype=dtype)
                        self.check(gradients(lambda q, k, v: ordo_attention(q, k, v, causal=causal), tensors, grad), exact_gradients(tensors, grad, causal))

    def test_packed_qkv_is_passed_as_it_lies(self):
        packed = torch.randn(2, 256, 3, 4, 128, device="cuda", dtype=torch.bfloat16)
        views = [packed[:, :, i].transpose(1, 2).detach().requires_grad_() for i in range(3)]
        dense = [x.detach().contiguous().requires_grad_() for x in views]
        grad = torch.randn_like(dense[0])
        for a, b in zip(gradients(ordo_attention, views, grad), gradients(ordo_attention, dense, grad)):
            self.assertTrue(torch.equal(a, b))

    def test_gradient_of_sum_is_one_element_expanded(self):
        tensors, _ = inputs(1, 2, 2, 200, 200, 64)
        got = torch.autograd.grad(ordo_attention(*tensors).sum(), tensors)
        expected = gradients(ordo_attention, tensors, torch.ones(1, 2, 200, 64, device="cuda", dtype=torch.bfloat16))
        for a, b in zip(got, expected):
            self.assertTrue(torch.equal(a, b))

    def test_deterministic_mode_is_satisfied_and_bits_repeat(self):
        tensors, grad = inputs(2, 8, 8, 1024, 1024, 128)
        torch.use_deterministic_algorithms(True)
        try:
            bits = {digest(gradients(lambda q, k, v: ordo_attention(q, k, v, causal=True), tensors, grad)) for _ in range(20)}
        finally:
            torch.use_deterministic_algorithms(False)
        self.assertEqual(len(bits), 1)

    def test_graph_replays_give_the_same_bits(self):
        tensors, grad = inputs(1, 4, 4, 512, 512, 128)
        attention = lambda q, k, v: ordo_attention(q, k, v, causal=True)
        expected = gradients(attention, tensors, grad)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            gradients(attention, tensors, grad)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = gradients(attention, tensors, grad)
        for _ in range(5):
            graph.replay()
            torch.cuda.synchronize()
            for a, b in zip(captured, expected):
                self.assertTrue(torch.equal(a, b))

    def test_compiles_without_a_break(self):
        tensors, grad = inputs(1, 4, 2, 256, 256, 64)
        attention = lambda q, k, v: ordo_attention(q * 1.0, k, v, causal=True) + 1
        for a, b in zip(gradients(torch.compile(attention, fullgraph=True), tensors, grad), gradients(attention, tensors, grad)):
            self.assertTrue(torch.allclose(a.float(), b.float(), rtol=2e-2, atol=2e-2))

    def test_replaces_sdpa(self):
        tensors, grad = inputs(1, 4, 4, 256, 256, 64)
        ours = gradients(lambda q, k, v: ordo_attention(q, k, v, causal=True), tensors, grad)
        with replace_sdpa():
            inside = gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), tensors, grad)
            F.scaled_dot_product_attention(*(x.float() for x in tensors))  # fp32: PyTorch's own
        for a, b in zip(inside, ours):
            self.assertTrue(torch.equal(a, b))

    def test_refusals_name_what_was_found(self):
        (q, k, v), _ = inputs(1, 4, 4, 64, 64, 64)
        self.assertIn("float32", supports(q.float(), k.float(), v.float()))
        self.assertIn("head_dim", supports(q[..., :32], k[..., :32], v[..., :32]))
        self.assertIn("cpu", supports(q.cpu(), k, v))
        with self.assertRaisesRegex(ValueError, "equal lengths"):
            ordo_attention(q[:, :, :32], k, v, causal=True)

    def test_training_twice_in_two_processes_gives_the_same_weights(self):
        script = os.path.join(os.path.dirname(__file__), "train.py")
        results = [json.loads(subprocess.run([sys.executable, script, "--steps", "200", "--attention", "ordo"], check=True, capture_output=True, text=True).stdout.splitlines()[-1])
                   for _ in range(2)]
        self.assertEqual(results[0]["weights"], results[1]["weights"])
        self.assertLess(results[0]["last_loss"], results[0]["first_loss"])


if __name__ == "__main__":
    unittest.main()
