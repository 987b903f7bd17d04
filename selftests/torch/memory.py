# SPDX-License-Identifier: Apache-2.0
"""Memory: statistics, peaks, empty_cache, a limit and running out of it, snapshots with their history;
under any of PyTorch's allocators, which PYTORCH_CUDA_ALLOC_CONF names."""
import os
import pickle
import tempfile

import torch

import check

MB = 1 << 20
CONF = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
NATIVE = "cudaMallocAsync" not in CONF


def counts():
    base = torch.cuda.memory_allocated()
    x = torch.zeros(8 * MB, dtype=torch.uint8, device="cuda")
    y = torch.ones(3 * MB, dtype=torch.uint8, device="cuda")
    check.expect(torch.cuda.memory_allocated() - base >= 11 * MB, "11 MB are not counted")
    del y
    check.expect(torch.cuda.memory_allocated() - base < 9 * MB, "3 MB are still counted")
    check.expect(torch.cuda.max_memory_allocated() - base >= 11 * MB, "the peak is not counted")
    check.expect(torch.cuda.memory_reserved() >= torch.cuda.memory_allocated(), "less is reserved than used")
    torch.cuda.reset_peak_memory_stats()
    check.expect(torch.cuda.max_memory_allocated() - base < 9 * MB, "the peak is not reset")
    stats = torch.cuda.memory_stats()
    check.expect(stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated(), "two counts differ")
    check.expect("Allocated memory" in torch.cuda.memory_summary(), "the summary lacks a row")
    check.expect(int(x.sum()) == 0, "zeros are not zero")


def given_back():
    """What is cached is the device's again after empty_cache."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    check.expect(0 < free <= total, f"{free} of {total} bytes are free")
    x = torch.empty(64 * MB, dtype=torch.uint8, device="cuda")
    less = torch.cuda.mem_get_info()[0]
    check.expect(free - less >= 64 * MB, f"64 MB took {(free - less) / MB:.0f} MB of the device")
    del x
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    check.expect(torch.cuda.mem_get_info()[0] == free, "empty_cache gives back less than was taken")


def grows():
    """A tensor that grows a piece at a time; expandable segments make room for it without holes."""
    parts, whole = [], torch.zeros(0, device="cuda")
    for i in range(12):
        parts.append(torch.full((MB // 2 * (i + 1),), float(i), device="cuda"))
        whole = torch.cat([whole, parts[-1][:1000]])
    check.same("what has grown", whole, torch.arange(12.0).repeat_interleave(1000))
    del parts[::2]
    torch.cuda.empty_cache()
    more = [torch.ones(MB, device="cuda") for _ in range(8)]
    check.expect(sum(float(part.sum()) for part in more) == 8 * MB, "memory that was freed is not usable")
    check.note(whole)


def limited():
    """Too much is refused as OutOfMemoryError, and what was there goes on."""
    x = torch.arange(1000, device="cuda")
    total = torch.cuda.mem_get_info()[1]
    try:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        check.expect(False, "twice the device's memory was given")
    except torch.OutOfMemoryError:
        pass
    if NATIVE:
        torch.cuda.set_per_process_memory_fraction(256 * MB / total)
        try:
            torch.empty(300 * MB, dtype=torch.uint8, device="cuda")
            check.expect(False, "more than the fraction was given")
        except torch.OutOfMemoryError:
            pass
        torch.cuda.set_per_process_memory_fraction(1.0)
    check.expect(int(x.sum()) == 499500, "an allocation that failed harmed another")


def snapshots():
    torch.cuda.memory._record_memory_history(max_entries=1000)
    x = torch.zeros(5 * MB, dtype=torch.uint8, device="cuda")
    del x
    with tempfile.NamedTemporaryFile() as file:
        torch.cuda.memory._dump_snapshot(file.name)
        dumped = pickle.load(open(file.name, "rb"))
    torch.cuda.memory._record_memory_history(enabled=None)
    history = [entry for trace in dumped["device_traces"] for entry in trace]
    check.expect(any(entry["action"] == "alloc" and entry["size"] >= 5 * MB
                     and any(frame["name"] == "snapshots" for frame in entry["frames"])
                     for entry in history), "the history lacks the allocation or where it was made")
    check.expect(dumped["segments"], "the snapshot has no segments")
    if "expandable" in CONF:
        check.expect(any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()),
                     "no segment is expandable")


check.repeatable()
check.expect(torch.cuda.get_allocator_backend() == ("native" if NATIVE else "cudaMallocAsync"),
             "it is another allocator")
counts()
given_back()
grows()
limited()
if NATIVE:
    snapshots()
check.finish()
