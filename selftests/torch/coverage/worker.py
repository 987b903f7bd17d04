# SPDX-License-Identifier: Apache-2.0
"""Runs operators of PyTorch's OpInfo database on the GPU and on the CPU, and compares.

worker.py MODE [DEVICE]     MODE: a name of MODES; DEVICE: cuda, or cpu to try the machinery itself

Reads a request per line, {"op": NAME, "from": INDEX}, and writes events, one JSON object a line:
    {"names": [...]}                         once, at the start: the operators that declare the mode
    {"op": NAME, "samples": N}               an operator begins
    {"at": I}                                a sample begins
    {"fail": I, "what": TEXT}                its results differ, or the GPU's call failed
    {"form": I}                              only form and type could be compared
    {"none": I}                              there is nothing to differentiate: not a sample of this mode
    {"broken": I, "what": TEXT}              the same as fail, and this process ends: its context is broken
    {"done": NAME}
A sample without an event has passed. The samples of an operator are the same in each process."""
import json
import os
import sys
import types
import warnings

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", CUBLAS_WORKSPACE_CONFIG=":4096:8")
warnings.filterwarnings("ignore")
# Only events are to be written to what was standard output.
events = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

# OpInfo's module imports what builds extensions, which Debian's Python has in another package.
try:
    import setuptools.command.build_ext  # noqa: F401
except ImportError:
    builder = types.ModuleType("setuptools.command.build_ext")
    builder.build_ext = type("build_ext", (), {})
    sys.modules["setuptools.command"] = types.ModuleType("setuptools.command")
    sys.modules["setuptools.command.build_ext"] = builder

import torch  # noqa: E402

# As the CPU computes; what follows forbids to change it.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._comparison import default_tolerances  # noqa: E402
from torch.testing._internal.common_utils import TestCase  # noqa: E402
from torch.utils._pytree import tree_flatten  # noqa: E402

MODES = {"forward-f32": torch.float32, "backward-f32": torch.float32,
         "forward-bf16": torch.bfloat16, "forward-f16": torch.float16}
WIDER = {torch.float32: torch.float64, torch.bfloat16: torch.float32, torch.float16: torch.float32}
WIDER_COMPLEX = {torch.complex64: torch.complex128, torch.complex32: torch.complex64}
SEED = 13

# Random, and PyTorch's comparison of CPU and GPU does not have them at all.
RANDOM = {"randn", "randint"}

# What PyTorch's programs in C++ for the GPU do, as the CPU has no such operators.
ON_CPU = {
    "jiterator_unary": lambda x: x * x + x,
    "jiterator_binary": lambda x, y, alpha=1: x + alpha * y,
    "jiterator_binary_return_by_ref": lambda x, y: x + y,
    "jiterator_4inputs_with_extra_args": lambda a, b, c, d, alpha=1, beta=1: alpha * a + beta * b + c + d,
    "jiterator_2inputs_2outputs": lambda x, y: [x + y, x - y],
}

mode, device = sys.argv[1], torch.device(sys.argv[2] if len(sys.argv) > 2 else "cuda")
dtype, backward = MODES[mode], mode.startswith("backward")
case = TestCase()


def tell(**event):
    events.write(json.dumps(event) + "\n")
    events.flush()


def line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def declares(op):
    if backward:
        return op.supports_autograd and dtype in op.backward_dtypesIfCUDA
    return dtype in op.dtypesIfCUDA


def mapped(value, change):
    """A copy of arguments in which each leaf is changed."""
    if isinstance(value, (list, tuple)):
        parts = [mapped(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: mapped(part, change) for key, part in value.items()}
    return change(value)


def copied(tensor, to):
    """A tensor elsewhere, with the strides and the offset that it has here."""
    with torch.no_grad():
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_conj() or \
                tensor.is_neg() or type(tensor) is not torch.Tensor:
            new = tensor.detach().to(to, copy=True)
        else:
            storage = tensor.untyped_storage()
            storage = storage.clone() if storage.device == to else storage.cpu()
            new = torch.empty(0, dtype=tensor.dtype, device=to)
            new.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return new.requires_grad_(tensor.requires_grad)


def again(leaf):
    return copied(leaf, leaf.device) if isinstance(leaf, torch.Tensor) else leaf


def on_the_cpu(leaf):
    if isinstance(leaf, torch.Tensor):
        return copied(leaf, torch.device("cpu"))
    if isinstance(leaf, torch.device) or isinstance(leaf, str) and leaf.split(":")[0] == "cuda":
        return torch.device("cpu")
    return leaf


def widened(leaf):
    if isinstance(leaf, torch.Tensor):
        wide = WIDER_COMPLEX.get(leaf.dtype) or (WIDER[dtype] if leaf.dtype == dtype else leaf.dtype)
        return leaf.detach().to(wide).requires_grad_(leaf.requires_grad)
    return WIDER[dtype] if leaf is dtype else leaf


def tolerance(op):
    """PyTorch's own for a comparison of CPU and GPU, or for the type; wider where OpInfo says so."""
    relative, absolute = (max(1e-3, default) for default in default_tolerances(dtype))
    for decorator in op.decorators:
        if getattr(decorator, "device_type", None) not in (None, "cuda"):
            continue
        for part in getattr(decorator, "decorators", [decorator]):
            given = getattr(part, "d", {}).get(dtype)
            if given is not None:
                absolute = max(absolute, getattr(given, "atol", given))
                relative = max(relative, getattr(given, "rtol", 0))
    return relative, absolute


def left_out(op):
    """Whether PyTorch's comparison of CPU and GPU leaves the operator out, mostly since it is random."""
    return op.full_name in RANDOM or any(
        getattr(d, "test_name", None) == "test_compare_cpu" and
        d.is_active("TestCommon", "test_compare_cpu", "cuda", dtype, {}) for d in op.decorators)


def tensors(value):
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def gradients(result, arguments):
    """Those of random sums of all results, by each argument that has one; None if there are none."""
    results = [t if t.layout is torch.strided else t.to_dense() for t in tensors(result) if t.requires_grad]
    inputs = [t for t in tensors(arguments) if t.requires_grad]
    if not results or not inputs:
        return None
    seeded = torch.Generator().manual_seed(SEED)
    weights = [torch.randn(t.shape, generator=seeded,
                           dtype=torch.complex64 if t.is_complex() else torch.float32).to(t.device, t.dtype)
               for t in results]
    found = torch.autograd.grad(results, inputs, weights, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, inputs)]


def compute(op, sample, arguments):
    torch.manual_seed(SEED)
    value, args, kwargs = arguments
    result = sample.output_process_fn_grad(op(value, *args, **kwargs))
    return gradients(result, arguments) if backward else result


def computed(op, sample, arguments):
    """What an operator gives, and its error."""
    try:
        return compute(op, sample, arguments), None
    except Exception as error:
        return None, error


def form(value):
    return [(t.shape, t.dtype, t.layout) if isinstance(t, torch.Tensor) else type(t)
            for t in tree_flatten(value)[0]]


def narrowed(value, like):
    """The leaves of a result in wider types, in those of another result."""
    value, like = tree_flatten(value)[0], tree_flatten(like)[0]
    return [v.to(w.dtype) if isinstance(v, torch.Tensor) and isinstance(w, torch.Tensor) else v
            for v, w in zip(value, like)] if len(value) == len(like) else value


def comparable(value):
    """PyTorch compares no pairs of f16."""
    return [t.to(torch.complex64) if isinstance(t, torch.Tensor) and t.dtype is torch.complex32 else t
            for t in tree_flatten(value)[0]]


def differs(got, wanted, limits):
    """Nothing if they agree, else how they differ."""
    try:
        case.assertEqual(comparable(got), comparable(wanted), rtol=limits[0], atol=limits[1])
    except Exception as error:
        return line(error)


def compared(op, sample, arguments, limits):
    """Nothing if a sample passes, else the name of an event, and what is wrong."""
    on_cpu = mapped(arguments, on_the_cpu)
    wide = mapped(mapped(arguments, on_the_cpu), widened)
    result, error = computed(op, sample, arguments)
    here = ON_CPU.get(op.full_name, op)
    wanted, cpu_error = computed(here, sample, on_cpu)
    if error is not None:
        return "fail", line(error)
    if result is None and wanted is None and cpu_error is None:
        return "none", ""
    torch.cuda.synchronize() if device.type == "cuda" else None
    why = line(cpu_error) if cpu_error else differs(result, wanted, limits)
    if why is None:
        return None
    wide_result, wide_error = computed(here, sample, wide)
    if wide_error is None:
        wide_why = differs(result, narrowed(wide_result, result), limits)
        if wide_why is None:
            return None
        why = wide_why if cpu_error else why
    if left_out(op) and (cpu_error is not None or form(result) == form(wanted)):
        return "form", ""
    return "fail", why


def broken():
    """What is wrong with the context, if something is."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.ones(1, device=device).item()
    except Exception as error:
        return line(error)


def samples_of(op):
    torch.manual_seed(SEED)
    return list(op.sample_inputs(device, dtype, requires_grad=backward))


def count_on_cpu(op):
    torch.manual_seed(SEED)
    try:
        return sum(1 for _ in op.sample_inputs(torch.device("cpu"), dtype, requires_grad=backward))
    except Exception:
        return 1


def serve(op, first):
    try:
        samples = samples_of(op)
        torch.cuda.synchronize() if device.type == "cuda" else None
    except Exception as error:
        count = count_on_cpu(op)
        tell(op=op.full_name, samples=count)
        for index in range(first, count):
            tell(fail=index, what="no samples: " + line(error))
        tell(done=op.full_name)
        return broken() is None
    tell(op=op.full_name, samples=len(samples))
    limits = tolerance(op)
    for index in range(first, len(samples)):
        tell(at=index)
        sample = samples[index]
        samples[index] = None
        try:
            arguments = mapped((sample.input, sample.args, sample.kwargs), again)
            verdict = compared(op, sample, arguments, limits)
        except Exception as error:
            verdict = "fail", line(error)
        why = broken() if verdict and verdict[0] == "fail" else None
        if why:
            tell(broken=index, what=f"{verdict[1]} ({why})"[:400])
            return False
        if verdict:
            tell(**{verdict[0]: index, "what": verdict[1]})
    tell(done=op.full_name)
    return True


class Pretended:
    """An operator that tests what reads the events: it is wrong, ends its process, or never ends."""
    supports_autograd = True
    backward_dtypesIfCUDA = dtypesIfCUDA = tuple(MODES.values())
    decorators = ()

    def __init__(self, full_name):
        self.full_name = full_name

    def sample_inputs(self, device, dtype, requires_grad):
        from torch.testing._internal.opinfo.core import SampleInput
        for i in range(4):
            yield SampleInput(torch.full((), i, device=device, dtype=dtype, requires_grad=requires_grad))

    def __call__(self, value):
        self.calls = getattr(self, "calls", 0) + 1
        if self.full_name == "pretended.crash" and value == 1:
            os.kill(os.getpid(), 11)
        while self.full_name == "pretended.hang" and value == 2:
            pass
        wrong = self.full_name == "pretended.wrong" and value == 3
        return value * self.calls if wrong else value * 1


def main():
    ops = {op.full_name: op for op in op_db if declares(op)}
    if os.environ.get("COVERAGE_PRETENDED"):
        ops.update((name, Pretended(name)) for name in
                   ("pretended.crash", "pretended.hang", "pretended.wrong", "pretended.right"))
    tell(names=sorted(ops))
    for request in sys.stdin:
        request = json.loads(request)
        if not serve(ops[request["op"]], request["from"]):
            return
    os._exit(0)


if __name__ == "__main__":
    main()
