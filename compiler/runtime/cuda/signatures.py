"""The functions of CUDA's driver API that are called: names in libcuda.so and types of arguments.

They are those of cuda.h. Names with `_v2` are what the header's names stand for; versions that are
newer than CUDA 11.4 are not asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

_INT, _UINT, _SIZE = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_AT = ctypes.c_uint64  # CUdeviceptr
_P = ctypes.c_void_p  # handles, and addresses of this process

SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuGetErrorName": (_INT, _P),
    "cuGetErrorString": (_INT, _P),
    "cuDriverGetVersion": (_P,),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _INT),
    "cuDeviceGetName": (_P, _INT, _INT),
    "cuDeviceTotalMem_v2": (_P, _INT),
    "cuDeviceGetAttribute": (_P, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_P, _INT),
    "cuCtxSetCurrent": (_P,),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (_P, _P),
    "cuMemAlloc_v2": (_P, _SIZE),
    "cuMemFree_v2": (_AT,),
    "cuMemsetD8Async": (_AT, ctypes.c_ubyte, _SIZE, _P),
    "cuMemcpyHtoDAsync_v2": (_AT, _P, _SIZE, _P),
    "cuMemcpyDtoHAsync_v2": (_P, _AT, _SIZE, _P),
    "cuMemcpyDtoDAsync_v2": (_AT, _AT, _SIZE, _P),
    "cuModuleLoadDataEx": (_P, _P, _UINT, _P, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_P, _P, ctypes.c_char_p),
    "cuFuncGetAttribute": (_P, _INT, _P),
    "cuFuncSetAttribute": (_P, _INT, _INT),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_P, _P, _INT, _SIZE),
    "cuLaunchKernel": (_P, *[_UINT] * 7, _P, _P, _P),
    "cuStreamCreate": (_P, _UINT),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuStreamBeginCapture_v2": (_P, _INT),
    "cuStreamEndCapture": (_P, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, ctypes.c_uint64),
    "cuGraphDestroy": (_P,),
    "cuGraphLaunch": (_P, _P),
    "cuGraphExecDestroy": (_P,),
    "cuEventCreate": (_P, _UINT),
    "cuEventDestroy_v2": (_P,),
    "cuEventRecord": (_P, _P),
    "cuEventSynchronize": (_P,),
    "cuEventElapsedTime": (_P, _P, _P),
}
"""Function -> types of its arguments; all return a CUresult."""

SUCCESS, OUT_OF_MEMORY, NO_DEVICE = 0, 2, 100

REJECTED = {200, 209, 218, 221, 222, 223, 300}
"""What the driver's compiler says of code: invalid image or PTX, for no such device, too new."""

DEADLY = {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721}
"""Errors after which nothing can run in a process any more: "any further CUDA work will return the
same error. To continue using CUDA, the process must be terminated and relaunched" (cuda.h)."""

THREADS_PER_BLOCK, SHARED_PER_BLOCK_OPTIN, REGISTERS_PER_BLOCK = 1, 97, 12
CLOCK_RATE, MULTIPROCESSORS, THREADS_PER_MULTIPROCESSOR = 13, 16, 39
MAJOR, MINOR = 75, 76
"""CUdevice_attribute."""

SHARED_SIZE, LOCAL_SIZE, REGISTERS, MAX_DYNAMIC_SHARED = 1, 3, 4, 8
"""CUfunction_attribute."""

ERROR_LOG, ERROR_LOG_BYTES = 5, 6
"""CUjit_option."""

NON_BLOCKING = 1
"""CUstream_flags: streams do not wait for the one that others use without naming it."""

RELAXED = 2
"""CUstreamCaptureMode: while a stream is captured, memory that nobody needs may be freed."""
