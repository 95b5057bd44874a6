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
"""Can a row be answered right at all? Its own reference, written as its prompt asks, is put to its own grader.

A row whose grader refuses that earns nothing, whatever the model writes. In mathematics a grader also accepts what
nobody can mean: `proof` equals `proof`, and a worked solution itself. What stands for no answer is told from its words.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeGuard

from recipe.common.query_ids import short
from recipe.common.reward.math.pool import grade
from recipe.common.reward.truths import accepted_answers
from recipe.common.reward.wrapped import bare


@dataclass(frozen=True)
class Grader:
    """Who judges a row.

    Args:
        name: rows with the same name, prompt form and ground truth get the same verdict.
        accepts: whether a response to a row is right.
        reads_mathematics: whether `no_answer` holds for its references.
    """

    name: str
    accepts: Callable[[Mapping, str], bool]
    reads_mathematics: bool = True


BOXED = r"\boxed{}"
FORMS = {
    BOXED: ("boxed", re.compile("boxed"), "\\boxed{{{}}}"),
    "####": ("####", re.compile(r"(?<=[^\n])####"), "#### {}"),  # at the start of a line it is a heading
    "Answer:": ("answer:", re.compile(r"answer:(?!\s*\Z)"), "Answer: {}"),  # at the end it is a cue
    "<answer>": ("<answer>", re.compile("<answer>"), "<answer>{}</answer>"),
}
"""By what a final answer is known: what a prompt in lower case holds that asks for it, with what around
it, and how it is written, with {} for what is answered."""
THINKING = "<think>\n</think>\n"

STANDS_FOR_NONE = frozenset(
    "proof|proved|see proof|proof omitted|notfound|not found|no answer|answer not found|no answer found|n/a|na|nan|"
    "null|unknown|see solution|see the solution|see explanation|see above|omitted|tbd|tbc|todo|qed|"
    "not provided|not given|not available|missing|see figure|see the figure|see graph|see diagram|see image|"
    "see picture|see table|see text|see below|see attached|answers may vary|answers vary|"
    "证明|证明略|略|见解析|证明见解析|图略|答案略|解析略|见图|如图|暂无答案|暂无".split("|")
)
"""What data sets write where a problem has no final answer, in lower case and without dots."""
TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{([^{}]*)\}")
MATHS = re.compile(r"\$[^$]*\$|\\[a-zA-Z]+|[^\W\d_]*[\d_^=][\w^=]*")
WORD = re.compile(r"[^\W\d_]{2,}")
LETTERS_OR_DIGITS = re.compile(r"[^\W_]|\\[a-zA-Z]|[\u2200-\u22ff]")
CHOICE = re.compile(r"\(?[A-J][).:]")
SENTENCE_WORDS, MOST_WORDS = 3, 8
WORKED = re.compile(r"\n\s*####[ \t]*(\S[^\n]*?)\s*\Z")


def asked_forms(prompt: str) -> tuple[str, ...]:
    """The forms of FORMS that a prompt asks for; all of them where it asks for none."""
    text = prompt.lower()
    found = tuple(name for name, (hint, asks, _) in FORMS.items() if hint in text and asks.search(text))
    return found or tuple(FORMS)


def written(answer: str, form: str, thinks: bool = False) -> str:
    r"""A response that gives this answer alone. `7`, `####`: `#### 7`."""
    return (THINKING if thinks else "") + FORMS[form][-1].format(answer)


def no_answer(reference: str) -> str | None:
    """Why nobody can give a reference of mathematics as an answer; None where it may be one."""
    if worked := WORKED.search(reference):
        return f"is a worked solution that ends in `#### {worked[1]}`; keep what it ends in"
    text = TEXT_COMMAND.sub(r"\1", reference).strip()
    plain = text.strip("$ ").replace(".", "").rstrip("!。").strip().casefold()
    if plain in STANDS_FOR_NONE or not LETTERS_OR_DIGITS.search(reference):
        return "stands for no answer"
    if CHOICE.match(text):
        return None  # its letter is an answer
    bare = MATHS.sub(" ", text)
    words = len(WORD.findall(bare))
    if (words > MOST_WORDS and bare == text) or (words >= SENTENCE_WORDS and text.endswith((".", "。"))):
        return "is a sentence, which no other words equal"
    return None


@dataclass
class Asked:
    """What became of the rows that were asked, and of what kind the others are."""

    rows: dict[str, int] = field(default_factory=dict)
    """By data source: how many."""
    left: dict[str, int] = field(default_factory=dict)
    """By data source: how many cannot be answered right."""
    numbers: list[int] = field(default_factory=list)
    """Of those, in order."""
    kinds: dict[tuple[str, str], tuple[int, str, int]] = field(default_factory=dict)
    """By data source and reason: the first such row, its reference, how many."""

    def add(self, number: int, source: str, truth: object, why: str | None) -> None:
        self.rows[source] = self.rows.get(source, 0) + 1
        if why is None:
            return
        self.numbers.append(number)
        self.left[source] = self.left.get(source, 0) + 1
        first, example, count = self.kinds.get((source, why), (number, str(truth), 0))
        self.kinds[source, why] = first, example, count + 1

    def hopeless(self) -> list[str]:
        """Data sources of which no row can be answered right."""
        return [source for source, count in self.rows.items() if self.left.get(source) == count]

    def sentences(self, sources: Iterable[str] | None = None) -> list[str]:
        """What is wrong, one sentence for each data source and reason."""
        chosen = set(self.rows if sources is None else sources)
        return [
            f"row {first}: reward_model.ground_truth {short(' '.join(example.split()))!r} {why}"
            + (f" ({count - 1:,} further row{'s' if count > 2 else ''} of data_source {source})" if count > 1 else "")
            for (source, why), (first, example, count) in self.kinds.items()
            if source in chosen
        ]


class Asker:
    """Asks rows of their grader; rows that are alike are asked once.

    Args:
        grader_of: the grader of a row in verl's format; None: nobody is asked about it.
    """

    def __init__(self, grader_of: Callable[[Mapping], Grader | None]):
        self.grader_of = grader_of
        self.known: dict[tuple, str | None] = {}

    def ask(self, asked: Asked, number: int, row: Mapping, prompt: str) -> None:
        """Put into `asked` whether a row can be answered right; nothing of one without ground truth or data source.

        Args:
            prompt: what its messages say.
        """
        reward, source = row.get("reward_model"), row.get("data_source")
        truth = reward.get("ground_truth") if isinstance(reward, Mapping) else None
        if truth is not None and isinstance(source, str):
            asked.add(number, source, truth, self.why_not(row, prompt))

    def why_not(self, row: Mapping, prompt: str) -> str | None:
        """Why a row cannot be answered right; None where it can, or nobody is asked."""
        grader, truth = self.grader_of(row), row["reward_model"]["ground_truth"]
        if grader is None:
            return None
        forms, thinks = asked_forms(prompt), "<think>" in prompt
        key = grader.name, forms, thinks, truth if isinstance(truth, str) else json.dumps(truth, default=str)
        if key not in self.known:
            self.known[key] = _ask(grader, row, forms, thinks)
        return self.known[key]


def _ask(grader: Grader, row: Mapping, forms: tuple[str, ...], thinks: bool) -> str | None:
    answers = answers_of(row["reward_model"]["ground_truth"])
    if not answers:
        return None
    if grader.reads_mathematics:
        reasons = [no_answer(answer) for answer in answers]
        if None not in reasons:
            return reasons[0]
        answers = [answer for answer, reason in zip(answers, reasons, strict=True) if reason is None]

    held = [bare(answer) for answer in answers] if grader.reads_mathematics else answers

    def accepted(form: str) -> bool:
        return any(grader.accepts(row, written(answer, form, thinks)) for answer in held)

    if any(map(accepted, forms)):
        return None
    whole = (written(answer, form, thinks) for answer in answers for form in forms)
    if held != answers and any(grader.accepts(row, response) for response in whole):
        return f"is right with all that it says, and wrong as {short(held[0])!r}: give the answer alone"
    other = next((form for form in FORMS if form not in forms and accepted(form)), None)
    if other is not None:
        return f"is right as `{written('x', other)}`, and the prompt asks for {' or '.join(forms)}"
    return "is not accepted by its own grader"


def answers_of(truth: object) -> list[str]:
    """The accepted answers of a ground truth, also of verl's `{"target": [..]}`; none of anything else."""
    try:
        return accepted_answers(truth.get("target") if isinstance(truth, Mapping) else truth)
    except ValueError:
        return []


def graded(row: Mapping, response: str) -> bool:
    return grade(response, answers_of(row["reward_model"]["ground_truth"])) is True


MATHEMATICS = Grader("mathematics", graded)
"""The recipe's own."""


@lru_cache(maxsize=1 << 18)
def unmatchable(answer: str) -> str | None:
    """Why nobody can give the answer of a problem of mathematics in a box; None where it can be given."""
    row = {"reward_model": {"ground_truth": answer}}
    return _ask(MATHEMATICS, row, (BOXED,), False)


def is_said(prompt: object) -> TypeGuard[list[Mapping]]:
    """Whether it is messages of text."""
    return isinstance(prompt, list) and all(
        isinstance(message, Mapping) and isinstance(message.get("content"), str) for message in prompt
    )


def said(prompt: Iterable[Mapping]) -> str:
    """What a prompt's messages say, as one text."""
    return "\n".join(message["content"] for message in prompt)
