"""Names for the arrays that pass between modules."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Bools", "Bytes", "Floats", "Ints"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
