# SPDX-License-Identifier: Apache-2.0
"""A notebook whose kernel is a job: cells that train on the GPU, a checkpoint that ends the kernel, a restore,
and cells that go on, sent by the client that has been connected all the time.

notebook.py SINGVGPU PYTHON whole|saved: prints what the cells print; "whole" leaves out checkpoint and restore."""
import queue
import subprocess
import sys

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

BEGINNING = """
import warnings; warnings.simplefilter("ignore")
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)).cuda()
optimiser = torch.optim.AdamW(model.parameters())
print(torch.cuda.get_device_name())
"""
STEP = """
optimiser.zero_grad()
loss = model(torch.randn(8, 16, device="cuda")).square().mean()
loss.backward()
optimiser.step()
print("loss", loss.item())
"""


def kernel(singvgpu, python):
    manager = KernelManager()
    manager._kernel_spec = KernelSpec(argv=[singvgpu, "run", "--", python, "-m", "ipykernel_launcher", "-f",
                                            "{connection_file}"], display_name="GPU", language="python")
    manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return manager


def cell(client, text):
    def said(message):
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            print(message["content"]["text"], end="", flush=True)

    reply = client.execute_interactive(text, timeout=300, output_hook=said)
    if reply["content"]["status"] != "ok":
        sys.exit(f"a cell failed: {reply['content']}")


def connected(client):
    """Waits until the kernel's answers come back on both channels."""
    while True:
        try:
            # A request that was sent before the kernel is back may be lost.
            client.kernel_info(reply=True, timeout=5)
            client.get_iopub_msg(timeout=1)
            return
        except (TimeoutError, queue.Empty):
            pass


def main():
    singvgpu, python, saved = sys.argv[1], sys.argv[2], sys.argv[3] == "saved"
    manager = kernel(singvgpu, python)
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=300)
    cell(client, BEGINNING)
    cell(client, STEP)
    if saved:
        front = manager.provisioner.process
        subprocess.run([singvgpu, "checkpoint", "--quiet", str(front.pid)], check=True, stdout=subprocess.DEVNULL)
        front.wait()
        back = subprocess.Popen([singvgpu, "restore", "--quiet", f"latest:{front.pid}"], stdout=subprocess.DEVNULL)
        connected(client)
    for i in range(3):
        cell(client, STEP)
    client.shutdown()
    (back if saved else manager.provisioner.process).wait(60)


main()
