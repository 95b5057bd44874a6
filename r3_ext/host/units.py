"""Units for people."""

GIB = 2**30


def human(size: float) -> str:
    """Bytes for people: 512 B, 20.3 MiB, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
