"""Text at the edges: what PostgreSQL cannot store is replaced here, and length is counted as a platform counts it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stratus.channel.values import TextUnit

REPLACEMENT = "\ufffd"

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_DEPTH_MAX = 100
_INT64_MAX = 2**63 - 1


def clean(text: str) -> str:
    """`text` with NUL and lone surrogates replaced by U+FFFD, one for one, and split surrogate pairs joined.

    PostgreSQL's text and jsonb hold neither (https://www.postgresql.org/docs/current/datatype-json.html). UTF-16
    offsets into the text stay true.
    """
    if _UNSTORABLE.search(text) is None:
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined.replace("\x00", REPLACEMENT)


def clean_json(value: Any, depth: int = 0) -> Any:
    """A copy of a JSON value that PostgreSQL and every JSON encoder take.

    Strings and keys are cleaned; NaN and infinities become None, integers beyond 64 bits become strings, and what is
    nested deeper than 100 levels becomes None.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if -_INT64_MAX <= value <= _INT64_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= _DEPTH_MAX:
        return None
    if isinstance(value, Mapping):
        return {clean(str(key)): clean_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [clean_json(item, depth + 1) for item in value]
    raise TypeError(f"not a JSON value: {type(value).__name__}")


def length(text: str, unit: TextUnit) -> int:
    """How long the platform finds `text`: in UTF-16 code units, code points, or UTF-8 bytes."""
    if unit is TextUnit.CODEPOINTS:
        return len(text)
    if unit is TextUnit.BYTES:
        return len(text.encode("utf-8", "surrogatepass"))
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
