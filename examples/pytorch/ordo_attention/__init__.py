"""Attention whose backward is deterministic: the same inputs give the same bits of dQ, dK and dV, on every run.

    from ordo_attention import ordo_attention, replace_sdpa

    out = ordo_attention(q, k, v, causal=True)        # [batch, heads, seqlen, head_dim], as scaled_dot_product_attention
    with replace_sdpa():                              # or for a whole model
        loss = model(batch)

The forward is PyTorch's own (cuDNN's or FlashAttention's, whose LSE it keeps); the backward is ordo's, on the current stream.
Tensors are passed without copies as long as their last dimension is contiguous and their rows are 16-byte aligned: packed QKV and
transposed views are.
"""

import contextlib
import ctypes
import functools
import math
import threading

import torch

from ._library import Engine, Kernel, OrdoError, Problem, Tensor, Tensors

__all__ = ["OrdoError", "ordo_attention", "plan_of", "replace_sdpa", "supports"]

_DTYPES = {torch.bfloat16: b"bf16", torch.float16: b"fp16"}
_HEAD_DIMS = (64, 128)
_lock = threading.Lock()


@functools.cache
def _engine(device_index: int) -> Engine:
    """One engine a device: its plans are made for the device that is current when it is created."""
    return Engine()


@functools.cache
def _prepared(device_index: int, sizes: tuple, causal: bool, dtype: torch.dtype) -> tuple[Kernel, Problem, int]:
    batch, heads, kv_heads, seqlen_q, seqlen_k, head_dim = sizes
    problem = Problem(ctypes.sizeof(Problem), batch, seqlen_q, seqlen_k, heads, kv_heads, head_dim, b"causal" if causal else b"full", _DTYPES[dtype])
    kernel = _engine(device_index).prepare(problem)
    return kernel, problem, kernel.workspace_bytes(problem)


def _kernel_for(q: torch.Tensor, k: torch.Tensor, causal: bool) -> tuple[Kernel, Problem, int]:
    batch, heads, seqlen_q, head_dim = q.shape
    with _lock:
        return _prepared(q.device.index, (batch, heads, k.shape[1], seqlen_q, k.shape[2], head_dim), causal, q.dtype)


def plan_of(q: torch.Tensor, k: torch.Tensor, causal: bool = False) -> str:
    """The plan's text that the backward of such tensors uses. Compiles what is missing."""
    with torch.cuda.device(q.device):
        return _kernel_for(q, k, causal)[0].plan


def supports(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """None, or why ordo_attention() cannot take these tensors."""
    if not (q.is_cuda and k.device == q.device and v.device == q.device):
        return f"tensors on one CUDA device are needed; found {q.device}, {k.device}, {v.device}"
    if torch.cuda.get_device_capability(q.device)[0] != 9:
        return f"a Hopper GPU (compute capability 9.0) is needed; found {torch.cuda.get_device_name(q.device)}"
    if q.dim() != 4 or k.dim() != 4 or v.shape != k.shape:
        return f"q, k, v must be [batch, heads, seqlen, head_dim], k and v alike; found {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
    if q.dtype not in _DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        return f"bfloat16 or float16 is needed for all three; found {q.dtype}, {k.dtype}, {v.dtype}"
    if q.shape[3] not in _HEAD_DIMS or k.shape[3] != q.shape[3]:
        return f"head_dim must be 64 or 128 for all three; found {q.shape[3]} and {k.shape[3]}"
    if q.shape[0] != k.shape[0] or k.shape[1] == 0 or q.shape[1] % k.shape[1] != 0:
        return f"k must have q's batch and a divisor of its heads; found {tuple(q.shape)} and {tuple(k.shape)}"
    if q.numel() == 0 or k.numel() == 0:
        return "no dimension may be 0"
    return None


def _addressable(x: torch.Tensor) -> torch.Tensor:
    """`x`, or a copy where the copy engine could not address its rows: they must be contiguous and 16-byte aligned, and no two
    elements may share memory (the gradient of sum() is one element expanded with strides 0)."""
    rows = all(x.stride(i) * x.element_size() % 16 == 0 and (x.stride(i) > 0 or x.shape[i] == 1) for i in range(3))
    return x if x.stride(3) == 1 and rows and x.data_ptr() % 16 == 0 else x.contiguous()


def _view(x: torch.Tensor) -> Tensor:
    """[batch, heads, seqlen, head_dim] as ordo names its strides. A dimension of one element may have any."""
    batch, head, seqlen, _ = x.stride()
    dense = x.shape[3]
    return Tensor(x.data_ptr(), batch if x.shape[0] > 1 else dense * x.shape[1] * x.shape[2], seqlen if x.shape[2] > 1 else dense,
                  head if x.shape[1] > 1 else dense * x.shape[2])


def _expanded(k: torch.Tensor, heads: int) -> torch.Tensor:
    """KV heads repeated for their query heads, which PyTorch's kernels need where ordo's do not."""
    return k if k.shape[1] == heads else k.repeat_interleave(heads // k.shape[1], dim=1)


@torch.library.custom_op("ordo::attention", mutates_args=())
def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = _expanded(k, q.shape[1]), _expanded(v, q.shape[1])
    if torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cudnn.is_available():
        out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
        lse = lse.reshape(q.shape[:3])
    else:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
        lse = lse[:, :, : q.shape[2]]
    return out, lse.contiguous()


@_attention.register_fake
def _(q, k, v, causal, scale):
    # The kernels return [batch, seqlen, heads, head_dim] memory, transposed.
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)
    return out, q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("ordo::attention_backward", mutates_args=())
def _attention_backward(grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
                        causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad, q, k, v, out = (_addressable(x) for x in (grad, q, k, v, out))
    dq, dk, dv = (_gradient_of(x) for x in (q, k, v))
    with torch.cuda.device(q.device):
        kernel, problem, size = _kernel_for(q, k, causal)
        workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
        tensors = Tensors(ctypes.sizeof(Tensors), *(_view(x) for x in (q, k, v, out, grad)), lse.data_ptr(), *(_view(x) for x in (dq, dk, dv)), scale)
        kernel.launch(problem, tensors, workspace.data_ptr(), size, torch.cuda.current_stream().cuda_stream)
    return dq, dk, dv


def _gradient_of(x: torch.Tensor) -> torch.Tensor:
    """Dense, in the order of dimensions that models keep: [batch, seqlen, heads, head_dim], transposed."""
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)


@_attention_backward.register_fake
def _(grad, q, k, v, out, lse, causal, scale):
    return _gradient_of(q), _gradient_of(k), _gradient_of(v)


def _save(ctx, inputs, output):
    q, k, v, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad, grad_lse):
    if grad_lse is not None:
        raise NotImplementedError("ordo_attention: no gradient flows through the LSE")
    if grad is None:
        return None, None, None, None, None
    return *_attention_backward(grad, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None


_attention.register_autograd(_backward, setup_context=_save)


def ordo_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None) -> torch.Tensor:
    """softmax(scale q k^T) v. q [batch, heads, seqlen_q, head_dim]; k, v [batch, kv_heads, seqlen_k, head_dim], kv_heads a
    divisor of heads; bfloat16 or float16; head_dim 64 or 128. scale: 1/sqrt(head_dim) unless given. causal needs
    seqlen_q == seqlen_k, because PyTorch and ordo align unequal lengths differently."""
    if reason := supports(q, k, v):
        raise ValueError(f"ordo_attention: {reason}")
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError(f"ordo_attention: causal needs equal lengths; found {q.shape[2]} queries and {k.shape[2]} keys")
    return _attention(q, k, v, causal, 1 / math.sqrt(q.shape[3]) if scale is None else float(scale))[0]


@contextlib.contextmanager
def replace_sdpa():
    """Within it, torch.nn.functional.scaled_dot_product_attention is ordo_attention() wherever that can take the call (no
    attn_mask, no dropout, see supports()), and itself elsewhere. Not for threads: the function is replaced for the process."""
    original = torch.nn.functional.scaled_dot_product_attention

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        equal = query.dim() == 4 and (enable_gqa or query.shape[1] == key.shape[1]) and (not is_causal or query.shape[2] == key.shape[2])
        if attn_mask is None and dropout_p == 0.0 and equal and supports(query, key, value) is None:
            return ordo_attention(query, key, value, causal=is_causal, scale=scale)
        return original(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)

    torch.nn.functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
