"""Text for people, from values and files that may come from anybody."""


def is_utf8(value: object) -> bool:
    """Whether it is text that can be written: JSON may hold half a character, "\\ud800"."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def short(value: object, most: int = 60) -> str:
    """A value as Python spells it, of `most` characters at most."""
    text = repr(value[:most]) if isinstance(value, str) else repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def in_one_line(text: str, instead: str = " ") -> str:
    """The text in one line, with `instead` for each character that a terminal or a page would take for a command."""
    return "".join(char if char.isprintable() else instead for char in text)


def first_line(error: BaseException) -> str:
    """What an error says, in a line of at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
