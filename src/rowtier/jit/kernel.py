"""Functions as kernels: compiled when first called, or found where others kept them."""

from __future__ import annotations

import functools
import hashlib
import pickle
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np
from numba.core import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from rowtier.jit import notice, store
from rowtier.jit.ahead import start_helpers
from rowtier.jit.code import digest_of

F = TypeVar("F", bound=Callable[..., Any])
# Nobody calls kernels from C, and what such calls need takes time to compile.
_OPTIONS = {"nopython": True, "nogil": True, "no_cfunc_wrapper": True, "boundscheck": None}
_SETTINGS = (config.OPT, config.BOUNDSCHECK, config.LOOP_VECTORIZE, config.SLP_VECTORIZE)
_FORMAT = "2"  # of kept files: others have other names, so that old and new live side by side
_VERSIONS = (
    _FORMAT,
    sys.version,
    np.__version__,
    numba.__version__,
    llvmlite.__version__,
    str(_SETTINGS),
)


def compiled(function: F) -> F:
    """Compile a function with numba and keep the machine code for the next process."""
    return _made(Kernel, function, _OPTIONS)


def inner(function: F) -> F:
    """The same for one that only compiled functions call: quicker to compile by a tenth.

    What takes the time is what Python needs to call it, most of all with tuples of arrays.
    """
    return _made(InnerKernel, function, {**_OPTIONS, "no_cpython_wrapper": True})


def _made(kind: type[Kernel], function: F, options: dict[str, Any]) -> F:
    if config.DISABLE_JIT:
        return function
    made = kind(function, targetoptions=options)
    made._cache = Kept(made)
    return cast(F, made)


class Kernel(CPUDispatcher):  # type: ignore[misc]
    """A compiled function; of several processes that need it at once, one compiles it."""

    def compile(self, sig: Any) -> Any:
        """Machine code for some types of arguments."""
        with global_compiler_lock:
            name = self._cache.name_of(sig)
            if normalize_signature(sig)[0] in self.overloads or store.has(name):
                return super().compile(sig)
            start_helpers(name_of(self.py_func))
            with notice.timed(), store.claimed(name):
                return super().compile(sig)


class InnerKernel(Kernel):
    """One that Python cannot call."""

    def __call__(self, *_: Any) -> Any:
        """Refuse: without this, the process would crash."""
        raise TypeError(f"{self.py_func.__name__} is for compiled functions only")


class Kept(NullCache):  # type: ignore[misc]
    """Where numba looks for machine code, and puts it: in `store`, by `digest_of`."""

    def __init__(self, kernel: Kernel):
        self._kernel = kernel

    @functools.cached_property
    def _made_from(self) -> str:
        cpu = self._kernel.targetctx.codegen().magic_tuple()
        options = sorted(self._kernel.targetoptions.items())
        return f"{digest_of(self._kernel.py_func)}{_VERSIONS}{cpu}{options}"

    def name_of(self, sig: Any) -> str:
        """The name under which machine code for some types of arguments is kept."""
        made_from = f"{self._made_from}{normalize_signature(sig)[0]}"
        key = hashlib.sha256(made_from.encode()).hexdigest()[:40]
        return f"{name_of(self._kernel.py_func).replace(':', '.')}-{key}.nbc"

    @property
    def cache_path(self) -> str:
        """Where it is."""
        return str(store.folder())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was kept; None if nothing was."""
        target_context.refresh()
        data = store.read(self.name_of(sig))
        try:
            return data and CompileResult._rebuild(target_context, *pickle.loads(data))
        except Exception:  # whatever pickle and LLVM raise: then it is compiled anew
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, unless it holds addresses of this process."""
        if not data.library.has_dynamic_globals:
            store.write(self.name_of(sig), dumps(data._reduce()))


def name_of(function: Any) -> str:
    """What a kernel is called: its module and its name."""
    return f"{function.__module__}:{function.__name__}"
