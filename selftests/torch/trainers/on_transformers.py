# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers, made small: trained for some steps, and asked to generate, on the CPU and on the GPU."""
import offline
from offline import check

import torch
from transformers import (BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, T5Config, T5ForConditionalGeneration, ViTConfig,
                          ViTForImageClassification)

WORDS = offline.tokens(4, 32)
TWO = torch.tensor([0, 1, 1, 0])
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
QUIET = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}


def pictures():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def models():
    """Name, a function that makes the model, and its batch."""
    language = {"input_ids": WORDS, "labels": WORDS}
    yield "gpt2", lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=100, n_positions=64, n_embd=64, n_layer=2, n_head=4, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0,
        bos_token_id=0, eos_token_id=0)), language
    yield "llama", lambda: LlamaForCausalLM(LlamaConfig(
        vocab_size=100, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, **SMALL)), language
    yield "bert", lambda: BertForSequenceClassification(BertConfig(vocab_size=100, **SMALL, **QUIET)), {
        "input_ids": WORDS, "labels": TWO, "attention_mask": (torch.arange(32) < 24 + 2 * TWO[:, None]).long()}
    yield "vit", lambda: ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, **SMALL, **QUIET)), {
        "pixel_values": pictures(), "labels": TWO}
    yield "t5", lambda: T5ForConditionalGeneration(T5Config(
        vocab_size=100, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0,
        decoder_start_token_id=0)), language


def trained(make, batch, device):
    torch.manual_seed(0)
    model = make().to(device).train()
    batch = {k: v.to(device) for k, v in batch.items()}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.detach())
    return model.eval(), torch.stack(losses)


def generated(model, device):
    """By the likeliest word, and by two beams."""
    prompt = WORDS[:2, :4].to(device)
    return [model.generate(prompt, max_new_tokens=8, do_sample=False, num_beams=n, pad_token_id=0) for n in (1, 2)]


check.repeatable()
for name, make, batch in models():
    (alone, want), (model, got) = trained(make, batch, "cpu"), trained(make, batch, check.GPU)
    check.close(f"{name}: losses", got, want, 1e-5)
    check.expect(got[-1] < got[0], f"{name} does not learn")
    check.note(got, *model.parameters())
    if name in ("gpt2", "llama"):
        for n, (words, wanted) in enumerate(zip(generated(model, check.GPU), generated(alone, "cpu")), 1):
            check.same(f"{name}: words of {n} beams", words, wanted)
check.finish()
