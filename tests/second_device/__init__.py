"""A second PyTorch device made of host memory, ``second:0``: what CUDA refuses shows without a GPU.

Every operator runs on the CPU, but tensors live on their own device: mixed tensors, CPU generators and CPU tensors that are
indexed from the device are refused, as CUDA refuses them. It has its own random stream, answers a Cholesky factorisation of NaN
without an error as cuSOLVER does, counts what would make the host wait, and can add round-off (:meth:`Second.rounding`). No
streams, no TF32.

``second.cpp`` is compiled with g++ against the headers of the installed torch, some twenty seconds once per version of either;
it touches private ATen headers and was written against torch 2.13.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sysconfig
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.cpp_extension import include_paths

NAME = "second"
_SOURCE = Path(__file__).with_name("second.cpp")


def can_be_built() -> bool:
    """Return whether there is a compiler."""
    return shutil.which("g++") is not None


def built(folder: Path) -> Path:
    """Return the library, compiled into ``folder`` unless it is there already.

    Raises:
        FileNotFoundError: If there is no g++.
        subprocess.CalledProcessError: If it does not compile.
    """
    stamp = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = folder / f"libsecond-{stamp}.so"
    if library.exists():
        return library
    lib, part = Path(torch.__file__).parent / "lib", library.with_suffix(".part")
    command = ["g++", "-O1", "-std=c++20", "-fPIC", "-shared", str(_SOURCE), "-o", str(part)]
    command += [f"-I{path}" for path in [*include_paths(), sysconfig.get_paths()["include"]]]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += [f"-L{lib}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}"]
    subprocess.run(command, check=True)
    part.rename(library)
    return library


class Second:
    """The loaded device: its counters and its round-off."""

    def __init__(self, library: Path) -> None:
        """Load the library and register the device; once per process."""
        self._units = 0
        self._lib = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self._lib.second_start()
        for name in ("waits", "uploads", "calls", "state_bytes"):
            getattr(self._lib, f"second_{name}").restype = ctypes.c_long
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, self._module())
        torch.utils.generate_methods_for_privateuse1_backend()

    @property
    def waits(self) -> int:
        """Times the host waited for the device since :meth:`reset`."""
        return int(self._lib.second_waits())

    def reset(self) -> None:
        """Count from zero again."""
        self._lib.second_reset()

    @contextmanager
    def rounding(self, units: int) -> Iterator[None]:
        """Let sums, products, solves and the like on the device be off by up to ``units`` units of round-off."""
        before = self._units
        self.round(units)
        try:
            yield
        finally:
            self.round(before)

    def round(self, units: int) -> None:
        """Be off by up to ``units`` units of round-off from now on."""
        self._units = units
        self._lib.second_rounding(units)

    def _module(self) -> types.ModuleType:
        """Return ``torch.second``, what ``torch.cuda`` is to CUDA."""
        module = types.ModuleType(f"torch.{NAME}")
        members = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "is_initialized": lambda: True,
            "_is_in_bad_fork": lambda: False,
            "manual_seed": self._seed,
            "manual_seed_all": self._seed,
            "get_rng_state": self._state,
            "set_rng_state": self._set_state,
            "get_amp_supported_dtype": lambda: [torch.float16],
            "set_device": lambda device: None,
            "synchronize": lambda device=None: None,
            "empty_cache": lambda: None,
            "mem_get_info": lambda device=None: (8 * 2**30, 16 * 2**30),
        }
        for name, member in members.items():
            setattr(module, name, member)
        return module

    def _seed(self, seed: int) -> None:
        self._lib.second_seed(ctypes.c_uint64(seed % 2**63))

    def _state(self, device: object = 0) -> Tensor:
        state = torch.empty(self._lib.second_state_bytes(), dtype=torch.uint8, device="cpu")
        self._lib.second_get_state(ctypes.c_void_p(state.data_ptr()))
        return state

    def _set_state(self, state: Tensor, device: object = 0) -> None:
        state = state.cpu().contiguous()
        self._lib.second_set_state(ctypes.c_void_p(state.data_ptr()))
