"""NumPy, imported when it is first used: describing data sets, as completion does at every key, must not wait for it.

Aliases of array types are strings, because they would use it when their module is imported.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray
else:

    class _Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            module = import_module("numpy")
            self.__dict__.update(vars(module))  # from now on as fast as the module itself
            return getattr(module, name)

    np = _Lazy("numpy")
    DTypeLike = NDArray = Any  # in annotations alone, which are not evaluated

__all__ = ["DTypeLike", "NDArray", "np"]
