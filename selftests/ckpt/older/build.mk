# SPDX-License-Identifier: Apache-2.0
# build.mk - checkpoints of older formats, which are read and whose sessions are rebuilt.

# The job of which make-older stores checkpoints.
$(B)/selftests/ckpt/older-job: selftests/ckpt/older/older_job.c $(B)/lib/libcuda.so.1 $(B)/lib/libnccl.so.2
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -isystem $(CUDA_HOME)/include -o $@ $< -L$(B)/lib -lcuda -lnccl

# Rebuilds the sessions of these checkpoints.
$(B)/selftests/ckpt/older: selftests/ckpt/older/older.c tools/ckpt/facts.c $(B)/uproxy/libcoll.a \
		$(B)/uproxy/ckpt/libsingvgpu-control.a $(B)/ckpt/libstore.a
	@mkdir -p $(@D)
	$(call cc_several,$(CFLAGS) -D_GNU_SOURCE -DSINGVGPU_VERSION='"test"' -Itools/ckpt -Itools/job -Itools/history \
		-Itools -Iuproxy/include -Iuproxy/ckpt/criu -Iuproxy/coll $(STORE_CFLAGS) -pthread) \
		$(filter %.c %.a,$^) $(LDFLAGS) $(STORE_LIBS) -lm

ifeq ($(SAN),)
TEST_PROGRAMS += $(B)/selftests/ckpt/older $(B)/selftests/ckpt/older-job
HOST_TESTS += selftests/ckpt/older/test-older
endif
