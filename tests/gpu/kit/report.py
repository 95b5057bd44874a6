"""What a stage found, in the file that it is named, as it goes: a stage that is cut short leaves what it has."""

import argparse
import json
import sys
from pathlib import Path


class Report:
    def __init__(self, path: Path):
        self.path, self.figures, self.missed = path, {}, []

    def add(self, figures: dict) -> None:
        self.figures |= figures
        self.path.write_text(json.dumps({**self.figures, "missed": self.missed}, indent=2) + "\n")

    def limit(self, name: str, value: float, most: float) -> None:
        """A figure above it, or that is not a number, is told at the end; the others are still to be seen."""
        if not value <= most:
            self.missed.append(f"{name} = {value}, at most {most}")
            self.add({})

    def end(self) -> None:
        """Exit code 1 where a figure is above its limit."""
        print(json.dumps(self.figures, indent=2))
        sys.exit("; ".join(self.missed) or 0)


def arguments(description: str) -> argparse.Namespace:
    """out: the stage's file. device: cuda or cpu. work: a short folder, where the kit lies unpacked."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--work", type=Path, required=True)
    return parser.parse_args()
