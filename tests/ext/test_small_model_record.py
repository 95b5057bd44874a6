"""What is told of the runs with a language model is what their record gives."""

from recipe.r3.config.r3_config import ReplayConfig
from tests.benchmarks.rivals import RESULTS
from tests.benchmarks.small_model import kind_rows, ledger_rows, read_rows, reflection_rows

RECORD = RESULTS / "smollm2"


def test_the_page_has_the_tables_of_its_record():
    text = (RECORD / "README.md").read_text()
    rows = [*kind_rows(RECORD), *ledger_rows(RECORD), *reflection_rows(RECORD)]
    assert len(rows) > 20
    assert [row for row in rows if row not in text] == []


def test_the_five_answers_are_told_as_they_came():
    text = (RECORD / "README.md").read_text()
    missing = [row for row in read_rows(RECORD / "answers.csv")[1:] if len(row[-1]) < 60 and f"`{row[-1]}`" not in text]
    assert missing == []


def test_what_speaks_of_the_attempt_is_what_the_default_passes_over():
    rows = read_rows(RECORD / "reflections.csv")[1:]
    speaks = ReplayConfig().speaks_of_attempt
    assert [text for *_, told, _, text in rows if bool(int(told)) != speaks(text)] == []
