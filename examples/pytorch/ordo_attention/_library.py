"""libordo by ctypes: the part of ordo.h that the backward needs."""

import ctypes
import ctypes.util
import os
from pathlib import Path

_ABI = 1


class OrdoError(RuntimeError):
    """A call into libordo failed. `status` is its name, e.g. "invalid_problem"; the message says what to do."""

    def __init__(self, status: str, message: str):
        super().__init__(f"{status}: {message}")
        self.status = status


class _Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("cache_path", ctypes.c_char_p), ("memory_cache_only", ctypes.c_int),
                ("target", ctypes.c_char_p), ("warn", ctypes.c_void_p), ("warn_data", ctypes.c_void_p)]


class Problem(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("batch", ctypes.c_int64), ("seqlen_q", ctypes.c_int64),
                ("seqlen_k", ctypes.c_int64), ("heads", ctypes.c_int64), ("kv_heads", ctypes.c_int64),
                ("head_dim", ctypes.c_int64), ("mask", ctypes.c_char_p), ("dtype", ctypes.c_char_p)]


class _Request(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("schedule", ctypes.c_char_p), ("accumulate", ctypes.c_char_p),
                ("static_shape", ctypes.c_int)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("batch_stride", ctypes.c_int64), ("seqlen_stride", ctypes.c_int64),
                ("head_stride", ctypes.c_int64)]


class Tensors(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor), ("o", Tensor), ("d_o", Tensor),
                ("lse", ctypes.c_void_p), ("dq", Tensor), ("dk", Tensor), ("dv", Tensor), ("scale", ctypes.c_float)]


def _open() -> ctypes.CDLL:
    """$ORDO_LIBRARY, else libordo beside this file, else the system's."""
    named = os.environ.get("ORDO_LIBRARY")
    beside = Path(__file__).with_name("libordo.so")
    path = named or (str(beside) if beside.exists() else ctypes.util.find_library("ordo") or "libordo.so.0")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"cannot load libordo ({error}); install ordo, or set ORDO_LIBRARY to the path of libordo.so") from error
    if library.ordo_abi_version() != _ABI:
        raise ImportError(f"{path} has ABI {library.ordo_abi_version()} and this package needs {_ABI}; install the ordo that it belongs to")
    pointer, status = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("ordo_status_name", ctypes.c_char_p, [status]),
        ("ordo_last_error", ctypes.c_char_p, []),
        ("ordo_engine_create", status, [ctypes.POINTER(_Options), ctypes.POINTER(pointer)]),
        ("ordo_plan_create", status, [pointer, ctypes.POINTER(Problem), ctypes.POINTER(_Request), ctypes.POINTER(pointer)]),
        ("ordo_plan_text", ctypes.c_char_p, [pointer]),
        ("ordo_plan_destroy", None, [pointer]),
        ("ordo_kernel_prepare", status, [pointer, pointer, ctypes.POINTER(pointer)]),
        ("ordo_kernel_workspace_bytes", status, [pointer, ctypes.POINTER(Problem), ctypes.POINTER(ctypes.c_size_t)]),
        ("ordo_kernel_launch", status, [pointer, ctypes.POINTER(Problem), ctypes.POINTER(Tensors), pointer, ctypes.c_size_t, pointer]),
        ("ordo_kernel_destroy", None, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_library = _open()


def _check(status: int) -> None:
    if status != 0:
        raise OrdoError(_library.ordo_status_name(status).decode(), _library.ordo_last_error().decode())


class Kernel:
    """The compiled kernels of one plan. Keep it while launches of it, or graphs that hold it, are in flight."""

    def __init__(self, handle: ctypes.c_void_p, plan: str):
        self._handle, self.plan = handle, plan

    def workspace_bytes(self, problem: Problem) -> int:
        size = ctypes.c_size_t()
        _check(_library.ordo_kernel_workspace_bytes(self._handle, ctypes.byref(problem), ctypes.byref(size)))
        return size.value

    def launch(self, problem: Problem, tensors: Tensors, workspace: int, size: int, stream: int) -> None:
        """Device pointers as integers; the context of `stream` is current."""
        _check(_library.ordo_kernel_launch(self._handle, ctypes.byref(problem), ctypes.byref(tensors), workspace, size, stream))


class Engine:
    """Plans, compiles and caches. Lives as long as the process: kernels of it may be part of graphs."""

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        _check(_library.ordo_engine_create(None, ctypes.byref(self._handle)))

    def prepare(self, problem: Problem, accumulate: str | None = None) -> Kernel:
        """Plans and compiles, or takes the cubins from the cache."""
        request = _Request(ctypes.sizeof(_Request), None, accumulate.encode() if accumulate else None, 0)
        plan, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_library.ordo_plan_create(self._handle, ctypes.byref(problem), ctypes.byref(request), ctypes.byref(plan)))
        try:
            _check(_library.ordo_kernel_prepare(self._handle, plan, ctypes.byref(kernel)))
            return Kernel(kernel, _library.ordo_plan_text(plan).decode())
        finally:
            _library.ordo_plan_destroy(plan)
