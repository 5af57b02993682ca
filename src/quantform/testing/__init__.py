"""The conformance kit: vectors for every packed profile, format and encoder, and checks that run them.

```python
from quantform import testing

report = testing.check_decoder(my_decoder, formats="gguf:q4_*")
assert report.ok, str(report)
```
Each vector is about one rule of the specifications (`RULES`), and all else in it is plain, so that a mistake shows
where it was made. `quantform.testing.strategies` has Hypothesis strategies; it is imported by its own name.
"""

from __future__ import annotations

from quantform.testing.checks import check_decoder, check_encoder, check_vector, decoder_cases, encoder_cases
from quantform.testing.differences import Difference
from quantform.testing.export import export
from quantform.testing.foreign import ForeignDecoder, ForeignEncoder
from quantform.testing.kit import RULES, encoder_vectors, vectors
from quantform.testing.report import Report, RuleResult
from quantform.testing.rules import Rule
from quantform.testing.vectors import EncoderVector, Vector

__all__ = [
    "RULES",
    "Difference",
    "EncoderVector",
    "ForeignDecoder",
    "ForeignEncoder",
    "Report",
    "Rule",
    "RuleResult",
    "Vector",
    "check_decoder",
    "check_encoder",
    "check_vector",
    "decoder_cases",
    "encoder_cases",
    "encoder_vectors",
    "export",
    "vectors",
]
