# SPDX-License-Identifier: Apache-2.0
"""Streams and events: times that events measure, order between streams, copies beside computation,
memory that a second stream uses; threads; a stream's priority."""
import threading
import time

import torch

import check


def timing():
    a = torch.randn(256, 256, device="cuda")
    (a @ a).sum().item()
    start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    began = time.perf_counter()
    start.record()
    for _ in range(10):
        a = (a @ a).clamp(-1, 1)
    middle.record()
    a = a @ a
    end.record()
    end.synchronize()
    passed = (time.perf_counter() - began) * 1000
    check.expect(end.query(), "an event that was waited for has not come")
    parts = start.elapsed_time(middle), middle.elapsed_time(end)
    check.expect(0 <= min(parts) and sum(parts) <= passed + 1,
                 f"events measure {parts} ms of {passed:.1f} ms")
    check.expect(abs(sum(parts) - start.elapsed_time(end)) < 0.1, "parts of a time are not the whole")
    check.note(a)


def order():
    """What one stream writes, another reads after wait_stream or wait_event."""
    side, other = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    x = torch.zeros(1 << 16, device="cuda")
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    for i in range(20):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
            done = side.record_event()
        other.wait_event(done)
        with torch.cuda.stream(other):
            total += x.double().mean()
        torch.cuda.current_stream().wait_stream(other)
    check.expect(total.item() == sum(range(1, 21)), f"streams add up to {total.item()}")
    side.synchronize()
    check.expect(side.query() and side != other, "a stream that was waited for is not idle")


def copies():
    """Pinned memory goes to the device and back on a stream, while another computes."""
    side = torch.cuda.Stream()
    rows = torch.arange(1 << 18, dtype=torch.float32).pin_memory()
    back = torch.empty_like(rows).pin_memory()
    busy = torch.ones(128, 128, device="cuda")
    for _ in range(5):
        with torch.cuda.stream(side):
            there = rows.to("cuda", non_blocking=True)
            there.mul_(2)
            back.copy_(there, non_blocking=True)
            there.record_stream(torch.cuda.current_stream())
        busy = (busy @ busy).clamp(max=1)
        del there
    side.synchronize()
    check.same("what came back", back, torch.arange(1 << 18, dtype=torch.float32) * 2)
    check.expect(busy.sum().item() == 128 * 128, "what was computed meanwhile is wrong")


def threads():
    results = [None] * 4

    def work(i):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.full((1000,), float(i + 1), device="cuda", requires_grad=True)
            for _ in range(5):
                loss = (x * x).sum()
                loss.backward()
            results[i] = x.grad[0].item()

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    check.expect(results == [10.0 * (i + 1) for i in range(4)], f"threads computed {results}")


check.repeatable()
timing()
order()
copies()
threads()
torch.cuda._sleep(1000)
check.finish()
