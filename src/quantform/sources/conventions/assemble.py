"""Finds which tensors make up a quantized weight, and in which convention."""

from __future__ import annotations

from typing import Any

from quantform._scalars import SCALARS
from quantform.errors import FileError, QuantformError
from quantform.sources._protocol import Source, Tensor
from quantform.sources.conventions.config import QuantizationConfig, Scheme
from quantform.sources.conventions.nvfp4 import Nvfp4Weight
from quantform.sources.conventions.scaled import RowScaledWeight, ScaledWeight
from quantform.sources.conventions.weight import BrokenWeight, QuantizedWeight, UnsupportedWeight, flat_words

__all__ = ["Assembler", "is_code"]

_CODES = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1", "e2m3", "e3m2", "int8", "uint8", "int32", "uint32")
_EXPONENTS = ("uint8", "e8m0")
_SCALES = ("_scale", "_scale_inv")
_BESIDE_SCALES = ("_scale_2", "_global_scale")
_COMPANIONS = (*_SCALES, *_BESIDE_SCALES, "_zero_point", "_g_idx", "_shape")
_INTEGERS = ("int32", "int64")
_BITSANDBYTES = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
_PACKED_INTEGERS = (
    ("qweight", ("qzeros", "scales", "g_idx"), "GPTQ or AWQ integers"),
    ("W_q", ("scale", "zero", "meta"), "HQQ integers"),
)


def is_code(tensor: Tensor) -> bool:
    """Whether the tensor's type and rank are those of codes."""
    return len(tensor.shape) >= 2 and tensor.format in _CODES


def _packed_shape(parts: dict[str, Tensor]) -> tuple[int, ...] | None:
    """What `shape`, the one small tensor read on opening, says of packed codes; None unless the codes can be that."""
    codes, shape = parts["codes"], parts.get("shape")
    if shape is None or shape.format not in _INTEGERS or shape.shape != (len(codes.shape),):
        return None
    *leading, columns = (int(word) for word in flat_words(shape, 0, shape.size))
    *stored, units = codes.shape
    bits = units * 8 * SCALARS[codes.format].nbytes
    return (*leading, columns) if leading == stored and 0 < columns <= bits else None


class Assembler:
    """Puts weights together from the tensors of a source.

    Args:
        source: Plain tensors.
        config: What the checkpoint says of its quantization, if anything.
    """

    def __init__(self, source: Source[Any], config: QuantizationConfig | None) -> None:
        self._source = source
        self._config = config
        self._where = str(source.path)

    def weights(self) -> dict[str, QuantizedWeight]:
        """Every quantized weight by its logical name, in the order of their codes.

        One that lacks a tensor, whose tensors do not fit, or that the config contradicts is a `BrokenWeight`.
        """
        found: dict[str, QuantizedWeight] = {}
        for name in self._source:
            try:
                weight = self._weight_of(name)
            except QuantformError as error:
                weight = self._broken(name, error)
            if weight is not None:
                other = found.get(weight.name)
                if other is not None:
                    weight = self._doubled(other, weight)
                found[weight.name] = weight
        for name, weight in found.items():
            if name in self._source and name not in weight.companions:
                found[name] = self._doubled(weight, None)
        if self._config is not None and not self._config.readable:
            used = {companion for weight in found.values() for companion in weight.companions}
            found |= self._foreign(self._config.method, used)
        return found

    def _broken(self, codes: str, error: QuantformError) -> BrokenWeight:
        """The weight whose codes are in `codes`, with whatever else may belong to it."""
        base = codes.removesuffix("_packed")
        names = [codes, base, *(stem + suffix for stem in (base, f"{base}_weight") for suffix in _COMPANIONS)]
        return BrokenWeight(base, self._present({name: name for name in names}), self._where, error)

    def _doubled(self, one: QuantizedWeight, other: QuantizedWeight | None) -> QuantizedWeight:
        """A weight whose name two sets of tensors claim, or a set and a tensor."""
        names = [*one.companions, *(other.companions if other is not None else (one.name,))]
        parts = self._present({name: name for name in names})
        if isinstance(one, BrokenWeight):
            error = one.error
        elif other is not None:
            error = FileError("two sets of tensors make up one weight", where=one.where(), found=other.companions[0])
        else:
            error = FileError("a weight is there both quantized and as a tensor of its name", where=one.where())
        return BrokenWeight(one.name, parts, self._where, error)

    def _foreign(self, method: str, used: set[str]) -> dict[str, QuantizedWeight]:
        """Whatever else may be codes of a method that is not read here."""
        return {
            name: self._unsupported(name, {"codes": tensor}, f"codes of the method {method!r}")
            for name, tensor in self._source.items()
            if name not in used and is_code(tensor) and tensor.format != "int32"
        }

    def _weight_of(self, name: str) -> QuantizedWeight | None:
        """The weight whose codes are in the tensor called `name`, if they are codes."""
        tensor: Tensor = self._source[name]
        module, _, last = name.rpartition(".")
        prefix = f"{module}." if module else ""
        for codes, others, what in _PACKED_INTEGERS:
            if last == codes and any(prefix + other in self._source for other in others):
                parts = self._present({"codes": name, **{other: prefix + other for other in others}})
                return self._unsupported(f"{prefix}weight", parts, what)
        if last == "compressed" and f"{prefix}bitmask" in self._source:
            parts = self._present(
                {"codes": name, **{part: prefix + part for part in ("bitmask", "shape", "row_offsets")}}
            )
            return self._unsupported(module, parts, "sparse values and their bit mask")
        if name.endswith("_packed"):
            return self._packed(name.removesuffix("_packed"))
        if name.endswith("_blocks") and f"{name.removesuffix('_blocks')}_scales" in self._source:
            base = name.removesuffix("_blocks")
            parts = self._present({"codes": name, "scales": f"{base}_scales"})
            return self._unsupported(base, parts, "MXFP4 in blocks and scales")
        if tensor.format in _CODES:
            return self._plain_codes(name, tensor)
        return None

    def _packed(self, base: str) -> QuantizedWeight | None:
        """A weight of compressed-tensors whose codes are packed."""
        names = {"codes": f"{base}_packed", "scales": f"{base}_scale"}
        if names["scales"] not in self._source:
            if self._config is None and not base.endswith("weight"):
                return None  # a tensor that only ends like one
            raise self._missing(base, names["scales"])
        if base in self._source:
            raise FileError(
                "a weight is there both packed and under its own name", where=self._at(base), found=names["codes"]
            )
        codes, scales = self._source[names["codes"]], self._source[names["scales"]]
        scheme = self._scheme(base)
        if codes.format != "uint8" or (scheme is not None and (scheme.kind != "float" or scheme.bits != 4)):
            extra = {part: f"{base}_{part}" for part in ("zero_point", "g_idx", "shape", "global_scale")}
            what = f"packed codes ({scheme})" if scheme is not None else f"integers packed in {codes.format}"
            parts = self._present({**names, **extra})
            return self._unsupported(base, parts, what, shape=_packed_shape(parts))
        if f"{base}_global_scale" in self._source or scales.format == "e4m3fn":
            self._agree(base, scheme, 16)
            names["global"] = f"{base}_global_scale"
            return self._nvfp4(base, names, "input_global_scale", reciprocal=False)
        self._agree(base, scheme, 32)
        return self._mxfp4(base, names)

    def _plain_codes(self, base: str, tensor: Tensor) -> QuantizedWeight | None:
        """A weight whose codes have its own name, or a plain tensor of such a type (then None)."""
        foreign = self._bitsandbytes(base, tensor)
        if foreign is not None:
            return foreign
        stems = dict.fromkeys((base, self._stem(base)))
        scales = [name for stem in stems for suffix in _SCALES if (name := stem + suffix) in self._source]
        return self._scaled(base, tensor, scales) if scales else self._unscaled(base, tensor)

    def _stem(self, base: str) -> str:
        """What the names of the weight's scales begin with; for fused experts `NAME`, this may be `NAME_weight`."""
        fused = f"{base}_weight"
        beside = any(fused + suffix in self._source for suffix in (*_SCALES, *_BESIDE_SCALES))
        return fused if beside and not base.endswith("weight") else base

    def _bitsandbytes(self, base: str, tensor: Tensor) -> UnsupportedWeight | None:
        states = [name for suffix in _BITSANDBYTES if (name := base + suffix) in self._source]
        factor = self._companion(base, "SCB")
        if not states and not (tensor.format == "int8" and factor in self._source):
            return None
        names = [*states, *(name for name in self._source if name.startswith(f"{base}.quant_state.")), factor]
        parts = self._present({"codes": base, **{name: name for name in names}})
        return self._unsupported(base, parts, "bitsandbytes codes")

    def _unscaled(self, base: str, tensor: Tensor) -> QuantizedWeight | None:
        """A tensor of a type of codes without scales: a plain one, unless the config or a companion says otherwise."""
        config = self._config
        stem = self._stem(base)
        if config is not None and not config.readable:
            return None
        inputs = self._companion(base, "input_scale") if base.endswith("weight") else f"{base}_input_scale"
        if inputs in self._source or any(stem + suffix in self._source for suffix in _BESIDE_SCALES):
            raise self._missing(base, f"{stem}_scale", self._scheme(base))
        if config is None or len(tensor.shape) < 2 or base.endswith(_COMPANIONS):
            return None
        scheme = config.scheme(self._module(base))
        stacked = len(tensor.shape) > 2 and tensor.format == "uint8"  # experts are not always called weights
        if scheme is not None and (base.endswith("weight") or tensor.format == "e4m3fn" or stacked):
            raise self._missing(base, f"{stem}_scale", scheme)
        return None

    def _scaled(self, base: str, tensor: Tensor, scales: list[str]) -> QuantizedWeight:
        config = self._config
        if len(scales) > 1:
            raise FileError("a weight has two sets of scales", where=self._at(base), found=" and ".join(scales))
        scheme = self._scheme(base)
        names = {"codes": base, "scales": scales[0]}
        if self._companion(base, "pre_quant_scale") in self._source:
            extra = {
                "global": f"{self._stem(base)}_scale_2",
                "pre_quant_scale": self._companion(base, "pre_quant_scale"),
            }
            return self._unsupported(
                base, self._present({**names, **extra}), "codes of a weight whose inputs are scaled (pre_quant_scale)"
            )
        if config is not None and not config.readable:
            return self._unsupported(base, self._present(names), f"codes of the method {config.method!r}")
        if tensor.format == "uint8":
            return self._modelopt_fp4(base, names, scheme)
        if tensor.format != "e4m3fn" or (scheme is not None and (scheme.kind != "float" or scheme.bits != 8)):
            extra = {part: f"{self._stem(base)}_{part}" for part in ("zero_point", "g_idx", "shape", "scale_2")}
            what = f"{tensor.format} codes" + (f" ({scheme})" if scheme is not None else "")
            return self._unsupported(base, self._present({**names, **extra}), what)
        return self._fp8(base, names, scheme)

    def _modelopt_fp4(self, base: str, names: dict[str, str], scheme: Scheme | None) -> QuantizedWeight:
        scales = self._source[names["scales"]]
        names["global"] = f"{self._stem(base)}_scale_2"
        if scheme is not None and (scheme.kind != "float" or scheme.bits != 4):
            return self._unsupported(base, self._present(names), f"packed codes ({scheme})")
        if scheme is not None and scheme.group_size == 32:
            del names["global"]
            return self._mxfp4(base, names)
        if scheme is None and scales.format != "e4m3fn" and names["global"] not in self._source:
            return self._unsupported(base, self._present(names), f"uint8 codes under {scales.format} scales")
        self._agree(base, scheme, 16)
        return self._nvfp4(base, names, "input_scale", reciprocal=True)

    def _nvfp4(self, base: str, names: dict[str, str], input_name: str, *, reciprocal: bool) -> QuantizedWeight:
        if names["global"] not in self._source:
            raise self._missing(base, names["global"])
        parts = self._present({**names, "input": self._companion(base, input_name)})
        pre_quant_scale = self._companion(base, "pre_quant_scale")
        if pre_quant_scale in self._source:
            parts["pre_quant_scale"] = self._source[pre_quant_scale]
            return self._unsupported(base, parts, "NVFP4 codes of a weight whose inputs are scaled (pre_quant_scale)")
        shifted = self._shifted(base, parts)
        if shifted is not None:
            return shifted
        return Nvfp4Weight(base, parts, self._where, reciprocal=reciprocal)

    def _mxfp4(self, base: str, names: dict[str, str]) -> QuantizedWeight:
        parts = self._present(names)
        return self._shifted(base, parts) or ScaledWeight(
            base,
            parts,
            self._where,
            convention="mxfp4",
            block=(1, 32),
            packed=True,
            exponents=True,
        )

    def _fp8(self, base: str, names: dict[str, str], scheme: Scheme | None) -> QuantizedWeight:
        tensor, scales = self._source[base], self._source[names["scales"]]
        parts = self._present({**names, "zero": f"{self._stem(base)}_zero_point"})
        shifted = self._shifted(base, parts, "_g_idx")
        if shifted is not None:
            return shifted
        exponents = scales.format in _EXPONENTS
        if scheme is not None and scheme.strategy == "block" and scheme.block is not None:
            return ScaledWeight(
                base, parts, self._where, convention="fp8-block", block=scheme.block, exponents=exponents
            )
        if scheme is not None and scheme.group_size is not None:
            if scheme.group_size == tensor.shape[-1] and not exponents:
                return RowScaledWeight(base, parts, self._where, per_tensor=False)
            name = "mxfp8" if exponents else "fp8-group"
            block = (1, scheme.group_size)
            return ScaledWeight(base, parts, self._where, convention=name, block=block, exponents=exponents)
        if names["scales"].endswith("_scale_inv"):
            raise FileError(
                "nothing says how large the blocks of the weight's scales are",
                where=self._at(base),
                expected="weight_block_size in the quantization_config of config.json",
                found=f"{names['scales']!r} {list(scales.shape)}",
                hint="Put the checkpoint's config.json beside it",
            )
        leading, by_row = tensor.shape[:-2], {tensor.shape[:-1], (*tensor.shape[:-1], 1)}
        by_matrix = {leading, (*leading, 1), (*leading, 1, 1)} if leading else set()
        if scheme is not None:
            per_tensor = scheme.strategy == "tensor"
        else:
            per_tensor = scales.size == 1 or scales.shape in by_matrix
        if scheme is None and not per_tensor and scales.shape not in by_row:
            raise FileError(
                "nothing says what the weight's scales mean",
                where=self._at(base),
                expected="one scale, one a row, or a quantization_config in config.json",
                found=f"{names['scales']!r} {list(scales.shape)}",
                hint="Put the checkpoint's config.json beside it",
            )
        return RowScaledWeight(base, parts, self._where, per_tensor=per_tensor)

    def _scheme(self, base: str) -> Scheme | None:
        """The config's scheme of a weight whose tensors are quantized; None where there is no config that says.

        Raises:
            FileError: The config says that the weight is not quantized.
        """
        if self._config is None or not self._config.readable:
            return None
        scheme = self._config.scheme(self._module(base))
        if scheme is None:
            raise FileError(
                "the weight's tensors are quantized and the config says that it is not",
                where=self._at(base),
                expected=f"a config group or algorithm for module {self._module(base)!r}",
                found=f"none, or an entry that ignores it, in {self._config.where}",
            )
        return scheme

    def _agree(self, base: str, scheme: Scheme | None, group_size: int) -> None:
        if scheme is not None and scheme.group_size != group_size:
            raise FileError(
                "the weight's tensors and the config disagree",
                where=self._at(base),
                expected=f"4-bit float in groups of {group_size}, as the tensors are",
                found=f"{scheme} in {scheme.origin or 'the config'}",
            )

    def _shifted(self, base: str, parts: dict[str, Tensor], *suffixes: str) -> UnsupportedWeight | None:
        """A refusal, where a tensor is there that changes what the codes mean."""
        stem = self._stem(base)
        for suffix in suffixes or ("_zero_point", "_g_idx"):
            if stem + suffix in self._source:
                extra = {suffix: self._source[stem + suffix]}
                return self._unsupported(base, {**parts, **extra}, f"codes that {stem + suffix!r} shifts or reorders")
        return None

    def _present(self, names: dict[str, str]) -> dict[str, Tensor]:
        return {part: self._source[name] for part, name in names.items() if name in self._source}

    def _unsupported(
        self, base: str, parts: dict[str, Tensor], what: str, shape: tuple[int, ...] | None = None
    ) -> UnsupportedWeight:
        return UnsupportedWeight(base, parts, self._where, f"{what} are not read by this package", shape=shape)

    def _missing(self, base: str, name: str, scheme: Scheme | None = None) -> FileError:
        return FileError(
            "a quantized weight lacks one of its tensors",
            where=self._at(base),
            expected=repr(name),
            found=f"none; the config says {scheme}" if scheme is not None else "none",
        )

    def _at(self, base: str) -> str:
        return f"{self._where}, tensor {base!r}"

    @staticmethod
    def _module(base: str) -> str:
        return base.removesuffix("weight").removesuffix(".") if base.endswith("weight") else base

    def _companion(self, base: str, last: str) -> str:
        """The name of a tensor beside the weight, in its module."""
        if self._stem(base) != base:
            return f"{base}_{last}"
        module = self._module(base)
        return f"{module}.{last}" if module else last
