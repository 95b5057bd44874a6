# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""References with something around the answer: `#### 36`, `["36"]`, `36 apples`. Who is asked answers 36."""

import re
from functools import lru_cache

from recipe.common.reward.math.answer_text import BARE_UNIT, NO_UNIT

WRAPPERS = [
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"####[ \t]*(\S[^\n]*)",
        r"(?:so,? )?(?:the )?(?:final |correct )?(?:answer|ans|solution)(?: is(?: [:=])?| ?[:=：])\s*(.+)",
        r"(?:最终)?答案(?:是|为)?\s*[:：]?\s*(.+)",
        r"<answer>(.+)</answer>",
        r"(.+?)\s*(?:</?s>|<eos>|<\|[^|<>]+\|>|</think>)",
        r"\*\*([^*]+)\*\*|__([^_]+)__|`([^`]+)`",
        r"""\[\s*(?:"([^"]+)"|'([^']+)')\s*\]""",
        r"""["“]([^"“”]+)["”]""",
    )
]
COUNTED = re.compile(
    rf"([+-]?\d[\d,.]*)\s+(?!(?:{NO_UNIT}|{BARE_UNIT})\b)(?=[a-z]*[aeiou])[a-z]{{4,}}(?:\s[a-z]{{4,}})?\.?"
)
MOST = 8
"""Wrappers around each other."""


@lru_cache(maxsize=1 << 12)
def bare(reference: str) -> str:
    """What a reference holds besides what stands around it; itself where nothing does. `**Answer: 5**`: `5`."""
    text = reference.strip()
    for _ in range(MOST):
        match = next(filter(None, (wrapper.fullmatch(text) for wrapper in WRAPPERS)), None)
        held = next(filter(None, match.groups()), "").strip() if match else ""
        if not held:
            break
        text = held
    match = COUNTED.fullmatch(text)
    text = match[1].rstrip(",.") if match else text
    return reference if text == reference.strip() else text
