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
"""Responses as text where the tokenizer calls `</think>` special: decoding drops it, and what was thought would count
as answered."""

END = "</think>"


def dropped_end(tokenizer) -> int | None:
    """The token `</think>` where decoding drops it; None where it stays, or is no token."""
    token = tokenizer.convert_tokens_to_ids(END)  # of what is no token the unknown one, or None
    if token is None or tokenizer.convert_ids_to_tokens([token]) != [END]:
        return None
    return None if tokenizer.decode([token], skip_special_tokens=True) else token


def decode(tokenizer, tokens: list[int], end: int | None) -> str:
    """Text without special tokens, but with the last `end`, which is what `dropped_end` says of the tokenizer."""
    if end not in tokens:
        return tokenizer.decode(tokens, skip_special_tokens=True)
    place = len(tokens) - 1 - tokens[::-1].index(end)
    parts = tokens[:place], tokens[place + 1 :]
    return END.join(tokenizer.decode(part, skip_special_tokens=True) for part in parts)
