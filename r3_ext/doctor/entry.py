"""`r3 doctor` where packages are missing, which all of its other files import: it says so."""

from __future__ import annotations

from r3_ext.doctor.finding import FAIL, INSTALL, Finding, passed, report_json
from r3_ext.doctor.installation import check_python
from r3_ext.host.hardware import installed_version

OWN_IMPORTS = (
    *("packaging", "hydra-core", "omegaconf", "rich", "psutil", "ray", "torch", "transformers", "verl"),
    *("numpy", "pyarrow"),
)
"""Without these the doctor cannot look further than Python and packages."""


def report_plain(findings: list[Finding]) -> bool:
    for finding in findings:
        print(f"{finding.level:<5}{finding.check}: {finding.found}")
        if finding.advice:
            print(f"     -> {finding.advice}")
    return passed(findings)


def main(argv: list[str]) -> int:
    if missing := [name for name in OWN_IMPORTS if installed_version(name) is None]:
        findings = [*check_python(), Finding(FAIL, "packages", "missing: " + ", ".join(missing), INSTALL)]
        return 0 if (report_json if "--json" in argv else report_plain)(findings) else 1
    from r3_ext.doctor import command

    return command.main(argv)
