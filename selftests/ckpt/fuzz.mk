# SPDX-License-Identifier: Apache-2.0
# fuzz.mk - the fuzzer of forged stores.

FUZZ_STORE := $(BUILD)/selftests/ckpt/fuzz_store
$(FUZZ_STORE): selftests/ckpt/fuzz_store.c $(wildcard uproxy/ckpt/store/*.c uproxy/ckpt/store/*.h)
	@mkdir -p $(@D)
	$(FUZZCC) -O1 -g -std=gnu11 -Wall -Wextra $(WERROR) -D_GNU_SOURCE -fno-sanitize-recover=all \
		-fsanitize=fuzzer,address,undefined -Iuproxy/ckpt/store -Iuproxy/include -o $@ $(filter %.c,$^) \
		-luring -lxxhash -lzstd -lpthread

ifeq ($(SAN),)
ifneq ($(shell command -v $(FUZZCC)),)
TEST_PROGRAMS += $(FUZZ_STORE)
endif
HOST_TESTS += selftests/ckpt/fuzz-store
TIMEOUT_fuzz-store := 120
LONG_TESTS += $(B)/selftests/ckpt/fuzz-store-long
TIMEOUT_fuzz-store-long := 900
endif
$(B)/selftests/ckpt/fuzz-store-long: selftests/ckpt/fuzz.mk
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nSINGVGPU_FUZZ_SEED=0 exec selftests/ckpt/fuzz-store 600\n' >$@
	@chmod +x $@
