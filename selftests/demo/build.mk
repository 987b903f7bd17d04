# SPDX-License-Identifier: Apache-2.0
# What `make demo` shows: two processes on a channel, the bench's table, training through a proxy,
# a checkpoint in the middle of that.

$(B)/selftests/demo/talk: selftests/demo/talk.c $(RINGBUF)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $(RINGBUF_CFLAGS) -MMD -MP $< $(RINGBUF) -pthread -o $@

DEMOS += $(B)/selftests/demo/talk $(B)/selftests/bench/ring

# Training, where there is a CUDA toolkit to build it with: then the generator's folder is known.
ifneq ($(GEN),)
selftests/demo/train: | $(B)/selftests/jobs/gpt $(B)/lib/libcuda.so.1 $(B)/uproxy/singvgpu-proxy \
	$(B)/tools/singvgpu $(B)/uproxy/softgpu/libsoftcuda.so $(B)/uproxy/softgpu/libsoftjit.so ;
selftests/demo/checkpoint: | selftests/demo/train $(B)/tools/singvgpu-init $(B)/lib/libsingvgpu-files.so ;
DEMOS += selftests/demo/train selftests/demo/checkpoint
endif

# What follows when PyTorch is unpacked, which takes minutes the first time: the same in PyTorch, and two
# ranks of that.
.PHONY: run-demo-torch
run-demo-torch: run-demo
	@tools/setup/setup -o torch
	@[ ! -e $(BUILD)/setup/torch.done ] || { selftests/demo/checkpoint torch && selftests/demo/ranks; }
