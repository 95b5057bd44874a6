"""The report of a rehearsal for people: rehearsal.md, which is also what is printed."""

from r3_ext.host.units import human
from r3_ext.rehearse.measured import ROLLOUT
from r3_ext.rehearse.report import PHASES, TRAINS, has_mechanisms
from r3_ext.rehearse.steps import FIRST, GRPO, LATER, WORST

TITLES = {FIRST: "first epoch", LATER: "later epochs", GRPO: "GRPO", WORST: "worst case"}


def duration(seconds: float) -> str:
    """3725: 1 h 2 min. 59.4: 59 s."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, rest = divmod(round(seconds), 3600)
    if hours < 48:
        return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
    return f"{hours / 24:.1f} days"


def gib_of(peak: dict) -> str:
    """`5.2`, and behind it what each GPU took."""
    gpus = " ".join(f"{gib:.1f}" for gib in peak.get("gpus", ()))
    return (f"{peak['main']:.2f}" if peak else "-") + (f" / {gpus}" if gpus else "")


def markdown(report: dict) -> str:
    """The report for people."""
    lines = ["# Rehearsal", ""]
    if failed := report.get("failure"):
        where = f"step {failed['step']} ({TITLES.get(failed['kind'], failed['kind'])}), " if failed["kind"] else ""
        lines += [f"**Failed in: {where}{failed['phase']}.** {failed['error']}", ""]
        lines += [f"Memory until then: {gib_of(failed['peak'])} GiB (main memory / each GPU)."]
        return "\n".join([*lines, "", "To change:", "", *(f"- {line}" for line in report["advice"])]) + "\n"
    sizes, predicted, disk = report["memory"], report["prediction"], report["disk"]
    verdict = "fits" if report["fits"] else "DOES NOT FIT"
    lines += [
        f"**The worst step {verdict}: {sizes['worst']:.2f} GiB of {sizes['budget']:.2f}**; typical steps take "
        f"{sizes['typical']:.2f} ({'main memory of all processes' if not sizes['per_gpu'] else 'the fullest GPU'}).",
        "",
    ]
    if report["advice"]:
        lines += ["To change:", "", *(f"- {line}" for line in report["advice"]), ""]
    lines += [
        f"**{predicted['steps']} steps will take {duration(predicted['seconds'])}**, "
        f"{duration(predicted['seconds_if_every_step_is_the_worst'])} if every step were the worst one"
        + (f"; {predicted['gpu_hours']:,} GPU hours" if predicted["gpu_hours"] else "")
        + f". {predicted['validations']} validations and {predicted['checkpoints']} checkpoints are in it. Responses "
        "are those of the model as it is now: training may make them longer.",
        "",
    ]
    if GRPO in (of_step := report["step_seconds"]):
        lines += [
            f"R^3 over GRPO: a later step takes {of_step[LATER]:.2f} s, one of GRPO on the same problems "
            f"{of_step[GRPO]:.2f} s; the whole run of GRPO {duration(predicted['seconds_of_grpo'])}.",
            "",
        ]
    lines += [*phase_table(report), "", *worst_case(report["worst_case"]), "", disk_line(disk)]
    if sized := report["sizing"]:
        lines += [
            "",
            "Computed (`python -m r3_ext.settings.sizing`), GiB: " + ", ".join(f"{k} {v}" for k, v in sized.items()),
        ]
    return "\n".join(lines) + "\n"


def disk_line(disk: dict) -> str:
    kept = f"Disk: {human(disk['checkpoint'])} per checkpoint, {disk['checkpoints_kept']} kept"
    if "history" not in disk:
        return f"{kept}."
    return f"{kept}; history {human(disk['history_step'])} per step, at most {human(disk['history'])} in all."


def phase_table(report: dict) -> list[str]:
    """A line per phase: seconds and tokens/s of each kind of step, memory of the typical and the worst ones."""
    kinds = [*report["phases"]]
    typical = LATER if LATER in kinds else FIRST
    titles = TITLES if typical == LATER else TITLES | {FIRST: "typical"}
    head = ["phase", *(f"{titles[kind]}: s" for kind in kinds), "tokens/s", "worst tokens/s", "GiB", "worst GiB"]
    table = [head]
    for name in PHASES:
        cells = {kind: report["phases"][kind].get(name) for kind in kinds}
        if not any(cells.values()):
            continue
        rates = [
            f"{cell['tokens'] / cell['seconds']:,.0f}" if cell and name in (ROLLOUT, *TRAINS) else "-"
            for cell in (cells[typical], cells[WORST])
        ]
        peaks = [gib_of(cell["memory"]) if cell else "-" for cell in (cells[typical], cells[WORST])]
        seconds = [f"{cell['seconds']:.2f}" if cell else "-" for cell in cells.values()]
        table.append([name, *seconds, *rates, *peaks])
    whole = [f"{report['step_seconds'][kind]:.2f}" for kind in kinds]
    table.append(["**step**", *whole, "-", "-", "-", "-"])
    for name in ("start", "validation", "checkpoint"):
        cell = report[name]
        table.append([name, f"{cell['seconds']:.2f}", *["-"] * (len(kinds) + 1), gib_of(cell["memory"]), "-"])
    widths = [max(len(row[place]) for row in table) for place in range(len(head))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    return [text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]]


def worst_case(worst: dict) -> list[str]:
    """What trained in the worst step, beside what the settings allow."""
    got, caps = worst["received"], worst["caps"]
    is_r3 = has_mechanisms(caps)
    pairs = {"rows": (got["fresh"], caps["fresh"])}
    if is_r3:
        pairs = {
            "rows of plain and reflection prompts": (got["fresh"], caps["fresh"] + caps["reflection"] * worst["n"]),
            "reflection prompts": (int(worst["reflection_prompts"]), caps["reflection"]),
            "replayed rows": (got["replayed"], caps["replayed"]),
            "ranked groups": (got["ranked_groups"], caps["ranked"]),
        }
    told = ", ".join(f"{have} of {most} {name}" for name, (have, most) in pairs.items())
    limits = (
        f"responses of {' to '.join(map(str, sorted({*got['fresh_tokens'][:1], *got['fresh_tokens'][-1:]})))} tokens "
        f"(limit {worst['response_limit']}), {'plain ' * is_r3}prompts of {worst['shortest_prompt']:.0f} to "
        f"{worst['longest_prompt']:.0f} (limit {worst['prompt_limit']}"
        f"{'; those to be reflected on leave room for it' * is_r3})"
    )
    lines = [f"Worst step, as {'the workers received it' if is_r3 else 'it trained'}: {told}; {limits}."]
    short = [name for name, (have, most) in pairs.items() if have < most]
    if short:
        lines.append(f"Below the caps: {', '.join(short)}. The real worst case may take more than was measured.")
    return lines
