# SPDX-License-Identifier: Apache-2.0
"""A GPT by Megatron's core, on $TP tensor-parallel times $PP pipeline-parallel ranks; with more ranks than that also
data-parallel, with a sharded optimizer; started by singvgpu run -n. on_megatron.py [STEPS [PAUSE]]: with seconds to wait
after each step"""
import os
import sys
import time

import offline
from offline import check

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 24
PAUSE = float(sys.argv[2]) if len(sys.argv) > 2 else 0
TP, PP = int(os.environ["TP"]), int(os.environ["PP"])
LENGTH, ROWS = 16, 4

check.repeatable()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
parallel_state.initialize_model_parallel(tensor_model_parallel_size=TP, pipeline_model_parallel_size=PP)
model_parallel_cuda_manual_seed(5)
last = parallel_state.is_pipeline_last_stage()
shards = ranks > TP * PP
config = TransformerConfig(num_layers=2, hidden_size=32, num_attention_heads=4, pipeline_dtype=torch.float32,
                           tensor_model_parallel_size=TP, pipeline_model_parallel_size=PP,
                           finalize_model_grads_func=finalize_model_grads, gradient_accumulation_fusion=False,
                           masked_softmax_fusion=False, bias_activation_fusion=False, persist_layer_norm=False)
model = GPTModel(config, get_gpt_layer_local_spec(), 100, LENGTH, post_process=last,
                 pre_process=parallel_state.is_pipeline_first_stage(), parallel_output=True).cuda()
model = DistributedDataParallel(config, DistributedDataParallelConfig(overlap_grad_reduce=True,
                                                                      use_distributed_optimizer=shards), model)
config.no_sync_func = model.no_sync
optimiser = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-2, use_distributed_optimizer=shards), [model])
rows = offline.tokens(64, LENGTH + 1).cuda()
place = torch.arange(LENGTH, device="cuda").expand(ROWS, LENGTH)
hidden = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device="cuda"), 1)


def batches():
    at = parallel_state.get_data_parallel_rank()
    while True:
        yield rows[at * ROWS % 64:][:ROWS]
        at += parallel_state.get_data_parallel_world_size()


def forward(data, net):
    batch = next(data)
    return net(batch[:, :-1], place, hidden, labels=batch[:, 1:]), lambda out: (out.mean(), {"loss": out.mean().detach()})


schedule, data, losses = get_forward_backward_func(), batches(), []
for step in range(STEPS):
    model.zero_grad_buffer()
    optimiser.zero_grad()
    told = schedule(forward_step_func=forward, data_iterator=data, model=model, num_microbatches=2, seq_length=LENGTH,
                    micro_batch_size=ROWS, forward_only=False)
    optimiser.step()
    loss = torch.stack([part["loss"] for part in told]).mean() if last else torch.zeros((), device="cuda")
    torch.distributed.all_reduce(loss)
    losses.append(loss * PP / ranks)
    if rank == 0:
        print("step", step, losses[-1].item(), flush=True)
    time.sleep(PAUSE)
check.expect(torch.stack(losses[-4:]).mean() < losses[0] / 2, "nothing is learned")
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
replicas = parallel_state.get_data_parallel_group()
everyone = [torch.empty_like(weights) for _ in range(replicas.size())]
torch.distributed.all_gather(everyone, weights, group=replicas)
check.expect(all(torch.equal(w, weights) for w in everyone), "the replicas' weights are not the same")
check.note(weights, torch.stack(losses))
if rank == 0:
    check.finish()
torch.distributed.destroy_process_group()
