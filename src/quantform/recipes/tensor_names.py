"""The names of one weight in llama.cpp's files and in Hugging Face checkpoints, for ordinary dense decoders.

Llama, Qwen, Mistral, Gemma and their like: one attention and one feed-forward block a layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["ggml_name", "huggingface_names"]

_IN_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "embed_tokens", "output": "lm_head"}
# What stands before the language model's own names; a vision tower has layers of its own, which are not these.
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")
_HEADS = ("", "language_model.")

_GGML_LAYER = re.compile(r"blk\.(\d{1,9})\.([a-z_]+)\.weight\Z")
_HF_LAYER = re.compile(r"(.*?)layers\.(\d{1,9})\.([a-z_.]+)\.weight\Z")
_TO_GGML = {other: name for name, other in _IN_LAYER.items()}


def ggml_name(name: str) -> str | None:
    """llama.cpp's name of a weight that a Hugging Face checkpoint calls `name`; None where it is not known."""
    match = _HF_LAYER.match(name)
    if match and match[1] in _PREFIXES and match[3] in _TO_GGML:
        return f"blk.{int(match[2])}.{_TO_GGML[match[3]]}.weight"
    for ours, theirs in _OUTSIDE.items():
        if any(name == f"{prefix}{theirs}.weight" for prefix in (*_PREFIXES, *_HEADS)):
            return f"{ours}.weight"
    return None


def huggingface_names(name: str) -> Iterator[str]:
    """What Hugging Face checkpoints may call a weight that llama.cpp calls `name`, the likeliest first."""
    match = _GGML_LAYER.match(name)
    if match and match[2] in _IN_LAYER:
        for prefix in _PREFIXES:
            yield f"{prefix}layers.{int(match[1])}.{_IN_LAYER[match[2]]}.weight"
    elif name == "token_embd.weight":
        yield from (f"{prefix}embed_tokens.weight" for prefix in _PREFIXES)
    elif name == "output.weight":
        yield from (f"{prefix}lm_head.weight" for prefix in _HEADS)
