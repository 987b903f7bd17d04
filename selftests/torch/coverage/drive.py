# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's operators on the GPU against the CPU, shard by shard, and writes the page of results.

drive.py [--modes MODE,...] [--minutes N] [--jobs N] [--limit S] [--shards N] [--size N] [--ops REGEX]
         [--again REGEX] [--failed] [--device cuda|cpu] [--out FOLDER] [--page FILE]

The order of operators is random and always the same, so those of the first shards are a sample of all.
FOLDER/MODE/SHARD.jsonl has a line for each operator that was measured; a run goes on where another was
ended. --minutes: begins no operator later than that. --limit: seconds for an operator. --shards: no more
than so many, of --size operators. --ops: only these; --again: these once
more; --failed: once more those of which samples have failed. Exit status 0 if all that was asked for has been measured."""
import argparse
import hashlib
import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from page import MODES, records, write

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[2]
RESTARTS = 4


class Worker:
    """A process that measures operators."""

    def __init__(self, mode, options, log):
        self.process = subprocess.Popen(
            [*options.runner, options.python, str(HERE / "worker.py"), mode, options.device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True, cwd=TOP)
        self.waiting = selectors.DefaultSelector()
        self.waiting.register(self.process.stdout, selectors.EVENT_READ)
        self.rest = b""
        self.lines = []

    def ask(self, **request):
        try:
            self.process.stdin.write((json.dumps(request) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def event(self, until):
        """The next event; {"ended": STATUS} if the process has ended, {"late": True} at the time `until`."""
        while not self.lines:
            if not self.waiting.select(max(0, until - time.monotonic())):
                if time.monotonic() < until:
                    continue
                return {"late": True}
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                return {"ended": self.process.wait()}
            *self.lines, self.rest = (self.rest + data).split(b"\n")
        return json.loads(self.lines.pop(0))

    def end(self):
        """Ends it, and with it the job: its processes are the job's supervisor's to end."""
        self.waiting.close()
        self.process.stdin.close()
        for how in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, how)
            try:
                self.process.wait(20)
                break
            except subprocess.TimeoutExpired:
                pass
        self.process.stdout.close()


class Shard:
    """Operators of one mode, one after the other, in one process as long as that lives."""

    def __init__(self, mode, number, names, options):
        self.mode, self.number, self.names, self.options = mode, number, names, options
        self.path = options.out / mode / f"{number:03}.jsonl"
        self.worker = None

    def measured(self):
        return {record["op"] for record in records(self.path)}

    def start(self):
        self.worker = Worker(self.mode, self.options, self.log)
        event = self.worker.event(time.monotonic() + 600)
        if "names" not in event:
            self.stop()
            sys.exit(f"the worker did not start: {event}; see {self.log.name}")

    def stop(self):
        if self.worker:
            self.worker.end()
            self.worker = None

    def measure(self, name):
        """A record of an operator. Each restart goes on behind the sample that ended the process."""
        record = {"op": name, "samples": 1, "fails": {}, "form": 0, "none": 0, "restarts": 0}
        if not self.worker:
            self.start()
        began, first, at = time.monotonic(), 0, 0
        until = began + self.options.limit
        self.worker.ask(op=name, **{"from": first})
        while True:
            event = self.worker.event(until)
            if "samples" in event:
                record["samples"] = event["samples"]
            elif "at" in event:
                at = event["at"]
            elif "fail" in event:
                record["fails"][str(event["fail"])] = event["what"]
            elif "form" in event or "none" in event:
                record["form" if "form" in event else "none"] += 1
            elif "done" in event:
                break
            else:
                what = event.get("what")
                if "late" in event:
                    what = f"time-out: {self.options.limit} s were not enough for the operator"
                elif "ended" in event:
                    what = f"crash: the process ended with {event['ended']}"
                record["fails"][str(at)] = what
                first, record["restarts"] = at + 1, record["restarts"] + 1
                self.stop()
                if "late" in event or record["restarts"] == RESTARTS:
                    for index in range(first, record["samples"]):
                        record["fails"][str(index)] = "not run: " + what
                    break
                if first >= record["samples"]:
                    break
                before = time.monotonic()
                self.start()
                until += time.monotonic() - before
                self.worker.ask(op=name, **{"from": first})
        record["seconds"] = round(time.monotonic() - began, 1)
        return record

    def run(self, until):
        """Measures what is missing; whether nothing is missing then."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        missing = [name for name in self.names if name not in self.measured()]
        self.log = open(self.path.with_suffix(".log"), "a")
        try:
            for name in missing:
                if time.monotonic() > until:
                    return False
                record = self.measure(name)
                with open(self.path, "a") as out:
                    out.write(json.dumps(record) + "\n")
                show(self.mode, self.number, record)
        finally:
            self.stop()
            self.log.close()
        return True


def show(mode, number, record):
    failed = len(record["fails"])
    print(f"{mode} {number:03} {record['op']}: {record['samples'] - failed - record['none']} of "
          f"{record['samples'] - record['none']} in {record['seconds']} s"
          + (f"; {next(iter(record['fails'].values()))[:140]}" if failed else ""), flush=True)


def names_of(mode, options):
    """The operators of a mode, in the order of their shards: known from the first run on."""
    path = options.out / mode / "declared.json"
    if not path.exists():
        with open(options.out / "names.log", "a") as log:
            worker = Worker(mode, options, log)
            event = worker.event(time.monotonic() + 600)
            worker.end()
        if "names" not in event:
            sys.exit(f"no list of operators: {event}; see {options.out}/names.log")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(event["names"]))
    names = json.loads(path.read_text())
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def forget(shards, options):
    for shard in shards:
        kept = [r for r in records(shard.path) if r["op"] not in shard.names or not
                (options.failed and r["fails"] or options.again and re.fullmatch(options.again, r["op"]))]
        if shard.path.exists():
            shard.path.write_text("".join(json.dumps(r) + "\n" for r in kept))


def shards_of(mode, options):
    names = names_of(mode, options)
    for number, i in enumerate(range(0, len(names), options.size)):
        chosen = [name for name in names[i:i + options.size] if re.fullmatch(options.ops, name)]
        if chosen and number < options.shards:
            yield Shard(mode, number, chosen, options)


def run_all(shards, options):
    """All shards, some at a time; whether nothing is missing."""
    until = time.monotonic() + options.minutes * 60
    taken, complete, lock = iter(shards), [], threading.Lock()

    def work():
        while True:
            with lock:
                shard = next(taken, None)
            if shard is None:
                return
            complete.append(shard.run(until))

    threads = [threading.Thread(target=work) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(complete) == len(shards) and all(complete)


def main():
    build = Path(os.environ.get("SINGVGPU_BUILD", TOP / "build"))
    parse = argparse.ArgumentParser()
    parse.add_argument("--modes", default=",".join(MODES))
    parse.add_argument("--minutes", type=float, default=1e6)
    parse.add_argument("--jobs", type=int, default=1)
    parse.add_argument("--limit", type=float, default=600)
    parse.add_argument("--shards", type=int, default=1 << 30)
    parse.add_argument("--size", type=int, default=16)
    parse.add_argument("--ops", default=".*")
    parse.add_argument("--again")
    parse.add_argument("--failed", action="store_true")
    parse.add_argument("--device", default="cuda")
    parse.add_argument("--out", type=Path, default=build / "torch-coverage")
    parse.add_argument("--page", type=Path)
    options = parse.parse_args()
    options.python = os.environ.get("TORCH_PYTHON", str(TOP / "build/torch/python3"))
    options.runner = shlex.split(os.environ.get("TORCH_RUNNER", f"{build}/tools/singvgpu run --"))
    os.environ.setdefault("SINGVGPU_SOFT_CACHE", str(build.resolve() / "softgpu-cache"))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    Path(os.environ["SINGVGPU_SOFT_CACHE"]).mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    shards = [shard for mode in options.modes.split(",") for shard in shards_of(mode, options)]
    if options.again or options.failed:
        forget(shards, options)
    complete = run_all(shards, options)
    if options.page:
        write(options.out, options.page)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
