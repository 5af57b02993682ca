"""The rules that verification looks at: one record each, of which the documentation's table is made."""

from __future__ import annotations

from dataclasses import dataclass

from quantform._registry import Registry

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: Its stable name.
        meaning: What it asks for, one line.
        kinds: The kinds of files that it is for.
        section: Where it is written: a section of the tensor formats, a storage layout, the container, or the file
            format's own description.
        remark: Whether breaking it is allowed and only worth a look: it makes a remark, and no finding.
    """

    name: str
    meaning: str
    kinds: str
    section: str
    remark: bool = False


_EVERY = "all"

RULES: Registry[Rule] = Registry(
    "rule",
    [
        Rule("open", "header and directory obey the file format, so that the file can be opened", _EVERY, "container"),
        Rule("files", "every file is there, whole, and belongs to the others", "ninfer", "container"),
        Rule(
            "structure",
            "known format and layout that fit each other and the shape; size and alignment as computed; bytes there",
            _EVERY,
            "8, container",
        ),
        Rule("code", "every code is legal in its format", "ninfer, safetensors", "3.3, 3.4, 5"),
        Rule("scale", "every scale is legal in its format", "ninfer, safetensors", "3.3, 3.4, 5"),
        Rule("zero-scale", "codes under a zero scale are zeros", "ninfer, safetensors", "3.4, 5"),
        Rule("overflow", "products of codes and scales are within binary32", "safetensors", "conventions"),
        Rule("divisor", "every divisor is finite and positive", "ninfer, safetensors", "3.3"),
        Rule("zero-point", "zero points beside FP8 codes are zeros", "safetensors", "conventions"),
        Rule("padding", "padding has its canonical bytes", "ninfer, gguf", "4, 8, layouts; gguf"),
        Rule("gap", "bytes between objects, and behind the last one, are zeros", "ninfer", "container"),
        Rule(
            "use",
            "auxiliaries have their role's format and shape, and the parameter is one that takes them",
            "ninfer",
            "container",
        ),
        Rule(
            "auxiliary",
            "divisors are finite and positive, signs +1 or -1, columns a permutation",
            "ninfer",
            "container",
        ),
        Rule(
            "frame",
            "the bytes that a GGUF file has beside its tensors fit these, and what else goes along is what they say",
            "ninfer",
            "conversion",
        ),
        Rule(
            "metadata",
            "texts are UTF-8, and booleans 0 or 1; what is beside a checkpoint is as conversion asks",
            "gguf, safetensors",
            "gguf, conventions",
        ),
        Rule("onnx", "onnx.checker accepts the model, inference of shapes included", "onnx", "onnx"),
        Rule("against", "tensors say what those of the file say that they were made from", _EVERY, "8"),
        Rule(
            "carried",
            "resources, configuration and name are those of the file that they were made from",
            "ninfer",
            "container",
        ),
        Rule(
            "digest",
            "a file as long as the one that it was made from has the SHA-256 digest that was recorded of it",
            "ninfer",
            "8",
        ),
        Rule("error", "no relative RMS error against the source is larger than asked for (`--max-error`)", _EVERY, "7"),
        Rule(
            "nonfinite-scale",
            "scales and minimums of packed blocks that are infinite or NaN",
            _EVERY,
            "operator",
            remark=True,
        ),
        Rule(
            "nonfinite-value",
            "values, decoded to binary32, that are infinite or NaN",
            _EVERY,
            "3.1, operator",
            remark=True,
        ),
        Rule(
            "undefined-scale",
            "scale bytes that decode but are no number as E8M0 or E4M3: MXFP4's 0xFF, NVFP4's from 0x7F on",
            _EVERY,
            "operator",
            remark=True,
        ),
        Rule(
            "undecoded",
            "tensors that are legal in their file and not decoded here: of other types or forms, or sparse",
            "safetensors, onnx",
            "conventions, onnx",
            remark=True,
        ),
        Rule(
            "zeros",
            "whole pages of zeros within a tensor: legal, and what a download that left something out looks like",
            _EVERY,
            "nowhere",
            remark=True,
        ),
        Rule(
            "unused",
            "bytes, objects or parts of objects that nothing refers to",
            "ninfer, gguf, onnx",
            "container",
            remark=True,
        ),
        Rule("left-over", "tensors of a checkpoint that no weight needs", "safetensors", "conventions", remark=True),
        Rule(
            "shape",
            "metadata.quantform.shapes has shapes of parameters, with their numbers of elements",
            "ninfer",
            "container",
            remark=True,
        ),
        Rule("large-error", "every relative RMS error against the source is less than 1", _EVERY, "7", remark=True),
        Rule(
            "origin",
            "the artifact records what it was made from, and the file that it is compared with is as long",
            "ninfer",
            "8",
            remark=True,
        ),
        Rule(
            "other-metadata",
            "metadata, and files beside a checkpoint, are those of the file of the same kind that it is compared with",
            "gguf, safetensors, onnx",
            "nowhere",
            remark=True,
        ),
        Rule(
            "method",
            "provenance.methods names methods that there are, formats that they make, and objects that have these",
            "ninfer",
            "2, 8",
            remark=True,
        ),
        Rule(
            "provenance",
            "recorded SHA-256 digests are 64 lower-case hexadecimal digits, and not all zeros",
            "ninfer",
            "8",
            remark=True,
        ),
    ],
    key=lambda rule: rule.name,
)
"""Every rule, findings first."""
