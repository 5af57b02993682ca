"""Moved: the scalar types live in `quantform._scalars`, below packed/ and formats/. Import them from there."""

from quantform._scalars import FLOAT_OUTPUTS, SCALARS, Scalar, as_dtype, convert, output_dtype

__all__ = ["FLOAT_OUTPUTS", "SCALARS", "Scalar", "as_dtype", "convert", "output_dtype"]
