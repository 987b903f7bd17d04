# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: a model trained on the CPU and on the GPU, compared; the
checksum of all that has to be the same in two runs."""
import hashlib
import os
import sys
import warnings

# One thread computes what is compared, and cuBLAS gives the same bits each time.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", CUBLAS_WORKSPACE_CONFIG=":4096:8")

# The soft device is newer than this PyTorch.
warnings.filterwarnings("ignore", message="(?s).*is not compatible with the current PyTorch")

import torch  # noqa: E402

GPU = torch.device("cuda")
digest = hashlib.sha256()


def repeatable():
    """Asks PyTorch for the same bits in each run."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # As the CPU computes.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def expect(condition, what):
    if not condition:
        print("FAIL", what, flush=True)
        sys.exit(1)


def close(what, got, want, tolerance):
    """Each element is within tolerance times the largest element of what is wanted."""
    got, want = got.detach().double().cpu(), want.detach().double().cpu()
    expect(got.shape == want.shape, f"{what} has shape {tuple(got.shape)}, not {tuple(want.shape)}")
    expect(bool(torch.isfinite(got).all()), f"{what} has infinite elements")
    scale = max(want.abs().max().item(), 1e-6) if want.numel() else 1
    error = (got - want).abs().max().item() / scale if want.numel() else 0
    expect(error <= tolerance, f"{what} differs from the CPU's by {error:.2e}, more than {tolerance:.0e}")


def same(what, got, want):
    expect(got.dtype == want.dtype and torch.equal(got.cpu(), want.cpu()), f"{what} is not the same")


def note(*tensors):
    """Adds tensors to the checksum."""
    for tensor in tensors:
        tensor = torch.as_tensor(tensor).detach().cpu().contiguous()
        digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")


def finish():
    torch.cuda.synchronize()
    print("checksum", digest.hexdigest()[:16])
    print("PASS", sys.argv[0].rsplit("/", 1)[-1], flush=True)


def digits():
    """The 1797 handwritten digits of scikit-learn: pictures in [0, 1] as N x 1 x 8 x 8, labels."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(pictures, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return pictures[order], torch.tensor(labels)[order]


def train(build, optimiser, loss_of, batches, device, autocast=None):
    """A model trained on the batches: the model, losses, and the gradients of the first batch."""
    torch.manual_seed(0)
    model = build().to(device)
    steps = optimiser(model)
    losses, first = [], None
    for batch in batches:
        batch = [part.to(device) for part in batch]
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            loss = loss_of(model, *batch)
        steps.zero_grad(set_to_none=True)
        loss.backward()
        if first is None:
            first = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        steps.step()
        losses.append(loss.detach())
    return model, torch.stack(losses), first


def compare(build, optimiser, loss_of, batches, tolerance, autocast=None, drift=10):
    """Trains on both; losses may drift apart by more than one step's tolerance. The GPU's model."""
    batches = list(batches)
    cpu = train(build, optimiser, loss_of, batches, torch.device("cpu"), autocast)
    gpu = train(build, optimiser, loss_of, batches, GPU, autocast)
    for name, wanted in cpu[2].items():
        close(f"the gradient of {name}", gpu[2][name], wanted, tolerance)
    close("the first loss", gpu[1][:1], cpu[1][:1], tolerance)
    close("the losses", gpu[1], cpu[1], tolerance * drift)
    note(gpu[1], *gpu[2].values(), *gpu[0].parameters())
    return gpu[0], gpu[1]
