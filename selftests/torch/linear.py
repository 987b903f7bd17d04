# SPDX-License-Identifier: Apache-2.0
"""Linear algebra and Fourier transforms by cuSOLVER, cuBLAS and cuFFT: factors multiplied together, and
values, against the CPU's; gradients through them; sorting and searching."""
import torch

import check


def factors(kind, tolerance):
    torch.manual_seed(0)
    x = torch.randn(3, 12, 12, dtype=kind)
    cpu = x @ x.mT.conj() + 12 * torch.eye(12, dtype=kind)
    gpu = cpu.to("cuda")
    la = torch.linalg
    check.close("a Cholesky factor", la.cholesky(gpu), la.cholesky(cpu), tolerance)
    check.close("an inverse", la.inv(gpu), la.inv(cpu), tolerance)
    check.close("a determinant's logarithm", la.slogdet(gpu)[1], la.slogdet(cpu)[1], tolerance)
    check.close("eigenvalues", la.eigvalsh(gpu), la.eigvalsh(cpu), tolerance)
    check.close("singular values", la.svdvals(gpu), la.svdvals(cpu), tolerance)
    check.close("a solution", la.solve(gpu, gpu[..., :2]), torch.eye(12, dtype=kind)[None, :, :2].expand(3, -1, -1),
                tolerance)
    wide = x[:, :5].to("cuda")
    check.close("a pseudo-inverse", la.pinv(wide), la.pinv(x[:, :5]), 10 * tolerance)
    check.close("least squares", la.lstsq(wide.mT, gpu[..., :1])[0], la.lstsq(x[:, :5].mT, cpu[..., :1])[0],
                10 * tolerance)
    q, r = la.qr(gpu)
    check.close("Q R", q @ r, cpu, tolerance)
    values, vectors = la.eigh(gpu)
    check.close("V diag V*", vectors @ torch.diag_embed(values).to(kind) @ vectors.mT.conj(), cpu, tolerance)
    u, s, v = la.svd(gpu)
    check.close("U diag V", u @ torch.diag_embed(s).to(kind) @ v, cpu, tolerance)
    p, lower, upper = la.lu(gpu)
    check.close("P L U", p @ lower @ upper, cpu, tolerance)
    check.note(values, s, q)


def gradients():
    grads = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)
        x = torch.randn(6, 6, dtype=torch.float64).to(device).requires_grad_()
        y = x @ x.T + torch.eye(6, device=device)
        loss = torch.linalg.cholesky(y).sum() + torch.logdet(y) + torch.linalg.solve(y, x).square().sum()
        (loss + torch.fft.rfft2(x).abs().sum()).backward()
        grads.append(x.grad)
    check.close("a gradient", grads[1], grads[0], 1e-9)
    check.note(grads[1])


def transforms():
    torch.manual_seed(2)
    for shape in ((64,), (3, 60), (2, 17, 12)):
        x = torch.randn(shape)
        gpu = x.to("cuda")
        check.close(f"rfftn of {shape}", torch.view_as_real(torch.fft.rfftn(gpu)),
                    torch.view_as_real(torch.fft.rfftn(x)), 1e-5)
        back = torch.fft.irfftn(torch.fft.rfftn(gpu), s=shape)
        check.close(f"there and back, {shape}", back, x, 1e-5)
    wave = torch.randn(2, 400)
    window = torch.hann_window(64)
    check.close("stft", torch.stft(wave.to("cuda"), 64, window=window.to("cuda"), return_complex=True).abs(),
                torch.stft(wave, 64, window=window, return_complex=True).abs(), 1e-5)


def sorted_and_found():
    torch.manual_seed(3)
    x = torch.randint(0, 500, (3, 3000))
    gpu = x.to("cuda")
    for name, of in (("sort", lambda t: t.sort(stable=True)[0]), ("its order", lambda t: t.sort(stable=True)[1]),
                     ("topk", lambda t: t.topk(50)[0]), ("unique", lambda t: t.unique(return_counts=True)[1]),
                     ("median", lambda t: t.float().median(1)[0]), ("nonzero", lambda t: (t > 480).nonzero()),
                     ("searchsorted", lambda t: torch.searchsorted(t.sort()[0], t)),
                     ("cumsum", lambda t: t.cumsum(1)), ("bincount", lambda t: t[0].bincount())):
        check.same(name, of(gpu), of(x))


check.repeatable()
# Of integers, whose sums have no order.
torch.use_deterministic_algorithms(False)
factors(torch.float32, 1e-4)
factors(torch.complex128, 1e-10)
gradients()
transforms()
sorted_and_found()
check.finish()
