# SPDX-License-Identifier: Apache-2.0
"""Adapters of PEFT in a model of Transformers, trained by Accelerate in bf16 with gradients of two batches added up;
as one process, or as the ranks of singvgpu run -n, whose adapters stay alike."""
import offline
from offline import check

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

check.repeatable()
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0,
                                   eos_token_id=0))
base = {n: p.clone() for n, p in model.named_parameters() if "c_attn" not in n}
model = get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
schedule = get_cosine_schedule_with_warmup(optimiser, 2, 40)
batches = torch.utils.data.DataLoader(offline.tokens(32, 32), 4, shuffle=True)
model, optimiser, batches, schedule = accelerator.prepare(model, optimiser, batches, schedule)
losses = []
for epoch in range(4):
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean())
check.expect(losses[-1] < losses[0], "the adapters do not learn")
inner = accelerator.unwrap_model(model)
for name, p in inner.named_parameters():
    if p.requires_grad:
        everyone = accelerator.gather(p.detach()[None])
        check.expect(bool((everyone == everyone[0]).all()), f"{name} is not the same on all ranks")
        check.note(p)
    elif (was := base.get(name.removeprefix("base_model.model."))) is not None:
        check.same(name, p, was)
check.note(torch.stack(losses))
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    check.finish()
accelerator.end_training()
