"""Every persistent form of a quantized weight: read, decode, convert and verify, bit for bit.

```python
import quantform as qf

with qf.open("model.gguf") as file:
    values = file["blk.0.attn_q.weight"].decode()
qf.convert("model.gguf", "model.ninfer")
```
"""

from __future__ import annotations

from quantform import errors
from quantform._catalog import format, formats, layout, layouts, profile, profiles
from quantform._version import __version__
from quantform.compare import compare
from quantform.convert import convert, plan
from quantform.encode import encode
from quantform.errors import QuantformError
from quantform.packed import dequantize_packed
from quantform.sources import open_source as open
from quantform.verify import verify

__all__ = [
    "QuantformError",
    "__version__",
    "compare",
    "convert",
    "dequantize_packed",
    "encode",
    "errors",
    "format",
    "formats",
    "layout",
    "layouts",
    "open",
    "plan",
    "profile",
    "profiles",
    "verify",
]
