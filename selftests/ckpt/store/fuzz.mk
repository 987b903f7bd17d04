# SPDX-License-Identifier: Apache-2.0
# fuzz.mk - the fuzzer of forged stores.

FUZZ_STORE := $(BUILD)/selftests/ckpt/fuzz_store
$(FUZZ_STORE): selftests/ckpt/store/fuzz_store.c selftests/harness/fuzz.h $(wildcard uproxy/ckpt/store/*.c uproxy/ckpt/store/*.h)
	@mkdir -p $(@D)
	$(FUZZCC) -O1 -g -std=gnu11 -Wall -Wextra $(WERROR) -Iringbuf/lock -D_GNU_SOURCE -fno-sanitize-recover=all \
		-fsanitize=fuzzer,address,undefined -Iuproxy/ckpt/store -Iuproxy/include -o $@ $(filter %.c,$^) \
		-luring -lxxhash -lzstd -lpthread

$(eval $(call FUZZER,ckpt/store,store,600,900))
