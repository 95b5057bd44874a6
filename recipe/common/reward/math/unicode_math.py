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
"""Unicode mathematics as LaTeX: what people write without commands. Pure functions of strings.

Only what has one reading is rewritten. What stays equals the same text and nothing else: a root whose reach is not
clear (`√2x`, `√x²`, `2³√5`), circled digits, text that turns its direction, Cyrillic and Greek letters that look like
Latin ones, words in Greek.
"""

import re
import unicodedata

INVISIBLE = "".join(
    map(chr, [0xAD, 0x61C, *range(0x200B, 0x2010), 0x202A, 0x202C, 0x2060, 0x2061, 0x2066, 0x2068, 0x2069, 0xFEFF])
)
"""No width and no meaning. What turns the direction of a text (U+202E and its like) is not among them."""

# Another form of one character. The full-width tilde is left out: it is a range, and `~` a space.
PLAIN = str.maketrans(
    {character: None for character in INVISIBLE}
    | {chr(code + 0xFEE0): chr(code) for code in range(ord("!"), ord("~"))}
    | dict.fromkeys("\u2010\u2011\u2012\u2212\ufe63", "-")
    | dict.fromkeys("º˚", "°")
    | {"\u2062": "×", "\u2063": ",", "\u2064": "+", "µ": "μ", "∆": "Δ", "℃": "°C", "℉": "°F", "、": ",", "。": "."}
)
RANGE = re.compile("\\$?[0-9.,]+\u2013[0-9.,]+\\$?")
"""An en dash between numbers alone is no minus: 3–4 is not -1."""
STYLED = re.compile("(?![0-9])\\d|[\U0001d400-\U0001d7ff]|ℎ")
OTHER_ALPHABET = re.compile("DOUBLE-STRUCK|SCRIPT|FRAKTUR")

RAISED_CHARACTERS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ"
RAISED = str.maketrans(RAISED_CHARACTERS, "0123456789+-=()abcdefghijklmnoprstuvwxyz")
LOWERED_CHARACTERS = "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ"
LOWERED = str.maketrans(LOWERED_CHARACTERS, "0123456789+-=()aehijklmnoprstuvx")
FRACTIONS = {
    character: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", character).split("⁄"))
    for character in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
}
LETTERS = dict(
    zip(
        "αβγδεζηθικλμνξπρστυφχψωϵϑϕΓΔΘΛΞΠΣΥΦΨΩ",
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
        "omega epsilon theta phi Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split(),
        strict=True,
    )
)
COMMANDS = """
≤ ≦ ⩽ le | ≥ ≧ ⩾ ge | ≠ ne | ≈ approx | ≡ equiv | ≅ cong | ∼ sim | ∝ propto | ± pm | ∓ mp | × ⨉ ⨯ ✕ times
· ⋅ ∙ • ‧ cdot
÷ div | ∪ cup | ∩ cap | ∈ in | ∉ notin | ⊂ subset | ⊆ subseteq | ⊃ supset | ⊇ supseteq | ∖ setminus | ∞ infty
∧ land | ∨ lor | ¬ neg | ∀ forall | ∃ exists | → to | ⇒ Rightarrow | ⇔ Leftrightarrow | ↦ mapsto | … ldots | ⋯ cdots
∑ sum | ∏ prod | ∫ int | ∂ partial | ∇ nabla | ∘ circ | ∠ angle | △ triangle | ⊥ perp | ∥ parallel | ℏ hbar | ℓ ell
⌊ lfloor | ⌋ rfloor | ⌈ lceil | ⌉ rceil | ⟨ 〈 langle | ⟩ 〉 rangle
ℂ mathbb{C} | ℕ mathbb{N} | ℚ mathbb{Q} | ℝ mathbb{R} | ℤ mathbb{Z}
"""
SIGNS = str.maketrans(
    {sign: f"\\{name} " for *signs, name in map(str.split, re.split(r"[|\n]", COMMANDS.strip())) for sign in signs}
    | {"⁄": "/", "∕": "/", "∗": "*", "∶": ":", "∣": "|", "‖": r"\|", "′": "'", "″": "''", "’": "'"}
)

ROOTS = {"√": "", "∛": "[3]", "∜": "[4]"}
ROOT = re.compile("([²³⁴⁵⁶⁷⁸⁹]?)([√∛∜]) ?")
MAX_ROOTS = 50
"""In one answer. More stay as they are: each is looked for to the end of the text."""
BARE = re.compile(r"[0-9]+(?:\.[0-9]+)?|[a-zA-Zα-ωΑ-Ω]|\\pi(?![a-zA-Z])|\\frac\{[0-9]+\}\{[0-9]+\}")
BEFORE_BRACKET = re.compile(r"(?:\\sqrt(?:\[[0-9]\])?(?=\{))?(?=[({])")
UNCLEAR = re.compile(rf" ?[\^!{RAISED_CHARACTERS}]")
UNCLEAR_AFTER_BARE = re.compile(rf"(?!i(?!\w))[\w{LOWERED_CHARACTERS}]|\\(?:pi|frac)|{UNCLEAR.pattern}")

RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"⅟([0-9]+)", r"\\frac{1}{\1}"),
        (
            rf"(?<![^\W\d_])(?<![)\]}}])([{RAISED_CHARACTERS[:10]}]+)[⁄∕/]([{LOWERED_CHARACTERS[:10]}]+)",
            lambda match: rf"\frac{{{match[1].translate(RAISED)}}}{{{match[2].translate(LOWERED)}}}",
        ),
        (rf"(?<![\w.,^√∛∜⁄/])([0-9]+)⁄([0-9]+)(?![0-9.,^⁄/!{RAISED_CHARACTERS}])", r"\\frac{\1}{\2}"),
        (rf"(\^ ?)?([{''.join(FRACTIONS)}])", lambda match: _single_fraction(match)),
    )
]
LATER_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"[{RAISED_CHARACTERS}]+", lambda match: f"^{{{match[0].translate(RAISED)}}}"),
        (rf"[{LOWERED_CHARACTERS}]+", lambda match: f"_{{{match[0].translate(LOWERED)}}}"),
        (r"(?<=[0-9])∘(?![\w(])", "°"),
        (r"° ?([CF])(?!\w)", r"°\\text{\1}"),
        (r"[\u0370-\u03ff\u1f00-\u1fff]+", lambda match: _greek(match[0])),
    )
]


def to_latex(text: str) -> str:
    """`x ≤ ½`: `x \\le  \\frac{1}{2}`; `2√3`: `2\\sqrt{3}`; `10⁻³`: `10^{-3}`. ASCII stays as it is."""
    if text.isascii():
        return text
    text = STYLED.sub(_plain, unicodedata.normalize("NFC", text).translate(PLAIN))
    text = text if RANGE.fullmatch(text.strip()) else text.replace("\u2013", "-")
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    text = _with_roots(text)
    for pattern, replacement in LATER_RULES:
        text = pattern.sub(replacement, text)
    return text.translate(SIGNS)


def _plain(match: re.Match) -> str:
    """The letter or digit of a bold, italic or other form of it. `ℝ` and its like are other symbols."""
    if OTHER_ALPHABET.search(unicodedata.name(match[0])):
        return match[0]
    digit = unicodedata.decimal(match[0], None)
    return unicodedata.normalize("NFKC", match[0]) if digit is None else str(digit)


def _single_fraction(match: re.Match) -> str:
    fraction = FRACTIONS[match[2]]
    return f"^{{{fraction}}}" if match[1] else fraction


def _greek(letters: str) -> str:
    """Commands of one or two letters. Of three and more it may be a word, and a product knows no order."""
    return "".join(f"\\{LETTERS[c]} " if c in LETTERS else c for c in letters) if len(letters) < 3 else letters


def _with_roots(text: str) -> str:
    """Root signs whose reach is clear as commands, the last first: so a root may stand below another."""
    found = list(ROOT.finditer(text))
    for match in reversed(found if len(found) <= MAX_ROOTS else []):
        degree, end = _degree(text, match), _argument_end(text, match.end())
        if degree is not None and end is not None:
            start = match.start() if degree != ROOTS[match[2]] else match.start(2)
            argument = text[match.end() : end]
            argument = argument[1:-1] if argument[0] in "({" else argument
            text = f"{text[:start]}\\sqrt{degree}{{{argument}}}{text[end:]}"
    return text


def _degree(text: str, match: re.Match) -> str | None:
    """`[3]` of `∛` and of `³√` with nothing before it, nothing of `√`. The 2 of `x²√3` is a power, `x³√3` not clear."""
    if not match[1] or (match[1] == "²" and re.search(r"[\w)\]}]$", text[: match.start()])):
        return ROOTS[match[2]]
    alone = match[2] == "√" and match[1] != "²" and not re.search(r"[\w)\]}]$", text[: match.start()])
    return f"[{match[1].translate(RAISED)}]" if alone else None


def _argument_end(text: str, start: int) -> int | None:
    """Where what is below a root sign ends, None if that is not clear. `3/2`: after 3; `(x+1)/2`: after the bracket."""
    bare = BARE.match(text, start)
    if bare:
        return None if UNCLEAR_AFTER_BARE.match(text, bare.end()) else bare.end()
    before = BEFORE_BRACKET.match(text, start)
    end = _group_end(text, before.end()) if before else None
    unclear = UNCLEAR_AFTER_BARE if before and before[0] else UNCLEAR
    return None if end is None or unclear.match(text, end) else end


def _group_end(text: str, start: int) -> int | None:
    """The place after the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "({[") - (text[i] in ")}]")
        if depth == 0:
            return i + 1
    return None
