"""Writes the table of rules in `verify.md` beside this file from the records: `python docs/make_rules.py`."""

from __future__ import annotations

from pathlib import Path

from quantform.verify import RULES

TARGET = Path(__file__).with_name("verify.md")
BEGIN, END = "<!-- rules -->\n", "<!-- end -->"


def build() -> str:
    """The whole page, its table renewed."""
    lines = ["| rule | asks for | files | written in |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{rule.name}`{' (remark)' if rule.remark else ''} | {rule.meaning} | {rule.kinds} | {rule.section} |"
        for rule in RULES.values()
    ]
    before, _, rest = TARGET.read_text().partition(BEGIN)
    return before + BEGIN + "".join(f"{line}\n" for line in lines) + END + rest.partition(END)[2]


if __name__ == "__main__":
    TARGET.write_text(build())
