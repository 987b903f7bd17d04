# SPDX-License-Identifier: Apache-2.0
"""Writes docs/torch-coverage.md from the results that drive.py has: totals, and each exception with its cause.

page.py RESULTS PAGE"""
import collections
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODES = {"forward-f32": ("forward, f32", 97), "backward-f32": ("backward, f32", 95),
         "forward-bf16": ("forward, bf16", 93), "forward-f16": ("forward, f16", 93)}

HEAD = """# PyTorch's operators

Written by `make torch-coverage`: each operator of PyTorch 2.6's OpInfo database
(`torch.testing._internal.common_methods_invocations.op_db`) that declares CUDA for the type, with all its
samples, on the soft device through the proxy, compared with the CPU. {share}

- *Passed*: the result is within 1e-3, absolute or relative, of the CPU's, as in PyTorch's own comparison of the
  two (`test_compare_cpu`); 1.6e-2, relative, for bf16; wider where OpInfo has a wider tolerance for the operator.
  Where the CPU lacks the type, or is itself less exact, it is the CPU's result in the next wider type, rounded.
- *Backward*: the gradients of all inputs, for random weights of all results.
- *Form only*: samples of operators that PyTorch's comparison leaves out, mostly as they are random or leave memory
  uninitialised. If the numbers differ, form and type are compared. They count as passed.
- An operator that takes longer than its limit or ends its process fails with that sample; after a time-out or four
  ends of its process all samples that are left fail.

| | operators | all samples pass | samples | passed | | goal | form only | time-outs, crashes |
|---|---|---|---|---|---|---|---|---|
"""


CHECKED = """\
Causes that speak of rounding have been checked against the next wider type for bf16, and for
`logcumsumexp`, `fft.fft` and `conv2d`; those of the other f16 groups, and of equal elements, are inferred.
"""


def records(path):
    """Those of a shard; an operator's last one counts. A line that was not written whole is none."""
    found = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(text)
        except ValueError:
            continue
        found[record["op"]] = record
    return list(found.values())


def results(folder, mode):
    """All records of operators that are declared."""
    declared = set(json.loads((folder / mode / "declared.json").read_text()))
    return [r for path in sorted((folder / mode).glob("*.jsonl")) for r in records(path) if r["op"] in declared], \
        len(declared)


def ended(what):
    return re.match(r"(not run: )?(time-out|crash|after)", what) is not None


def total(mode, found, declared):
    samples = sum(r["samples"] - r["none"] for r in found)
    failed = sum(len(r["fails"]) for r in found)
    name, goal = MODES[mode]
    percent = 100 * (samples - failed) / max(samples, 1)
    return (f"| {name} | {len(found)} of {declared} | {sum(not r['fails'] for r in found)} | {samples} | "
            f"{samples - failed} | {percent:.2f} % | {goal} % | {sum(r['form'] for r in found)} | "
            f"{sum(ended(what) for r in found for what in r['fails'].values())} |\n")


def causes():
    """Lines OPERATORS WHAT CAUSE, with tabs between: patterns of names and of texts of failures, a sentence."""
    for text in (HERE / "causes.txt").read_text().splitlines():
        if text and not text.startswith("#"):
            operators, what, cause = re.split(r"\t+", text)
            yield re.compile(operators), re.compile(what), cause


def cause_of(known, op, what):
    for operators, pattern, cause in known:
        if operators.fullmatch(op) and pattern.search(what):
            return cause
    return "Not known: " + re.sub(r"\d+(\.\d+)?(e-?\d+)?", "N", what)[:160].replace("|", "\\|")


def exceptions(found):
    """Causes, the most frequent first: of each the samples that fail, by mode and operator."""
    known = list(causes())
    groups = collections.defaultdict(collections.Counter)
    for mode, of_mode in found.items():
        for record in of_mode:
            for what in record["fails"].values():
                groups[cause_of(known, record["op"], what)][mode, record["op"]] += 1
    return sorted(groups.items(), key=lambda group: -group[1].total())


def share(found, declared):
    measured, all_of = sum(map(len, found.values())), sum(declared.values())
    if measured == all_of:
        return "All of them were measured."
    return (f"{100 * measured / all_of:.0f} % of them were measured: a random choice, always the same, of those of "
            "each type.")


def write(folder, page):
    found, declared = {}, {}
    for mode in MODES:
        if (folder / mode / "declared.json").exists():
            found[mode], declared[mode] = results(folder, mode)
    text = HEAD.format(share=share(found, declared))
    text += "".join(total(mode, found[mode], declared[mode]) for mode in found)
    text += "\n## What fails, and why\n\n" + CHECKED
    for cause, counts in exceptions(found):
        text += f"\n{cause}\n\n"
        for mode in found:
            here = sorted((op, n) for (m, op), n in counts.items() if m == mode)
            if here:
                text += f"- {MODES[mode][0]}: " + ", ".join(f"`{op}` {n}" for op, n in here) + "\n"
    page.write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
