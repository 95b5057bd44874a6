"""Tables on the terminal, of values from files that may come from anybody."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from r3_ext.host.text import in_one_line

CELL = 1_000
"""Characters of a value that a table shows; folding megabytes into a column takes minutes."""


def printable(value: object) -> str:
    """A value for the terminal, cut and without control characters: the file may come from somebody else."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if len(text) > CELL:
        text = f"{text[:CELL]}... ({len(text):,} characters)"
    return in_one_line(text)


def print_table(title: str, columns: list[str], rows: list[tuple]) -> None:
    """Rows as a table; without `columns`, as names and values."""
    cells = [[printable(value) for value in row] for row in rows]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=bool(columns))
    for index, name in enumerate(columns or ["", ""]):
        numeric = columns and all(set(row[index]) <= set("-+.,/%0123456789") for row in cells)
        table.add_column(printable(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"
