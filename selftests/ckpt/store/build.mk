# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the store library

STORE_TEST_DIR := $(B)/selftests/ckpt
STORE_TESTS := $(addprefix $(STORE_TEST_DIR)/,store store_claims store_open store_faults store_trust store_forged)
# They look behind the interface: all objects, and not the library, which hides its names.
EDGES_LDFLAGS := -Wl,--wrap=malloc,--wrap=realloc,--wrap=free
STORE_TEST_OBJ := $(patsubst uproxy/ckpt/%.c,$(B)/ckpt/%.o,$(wildcard uproxy/ckpt/store/*.c))
$(STORE_TESTS): $(STORE_TEST_DIR)/%: selftests/ckpt/store/%.c $(STORE_TEST_OBJ) $(KSELFTEST_H) selftests/ckpt/store/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(STORE_CFLAGS) -MMD -MP -o $@ $< $(STORE_TEST_OBJ) \
		$(LDFLAGS) $(STORE_LIBS) $(EDGES_LDFLAGS)

# All bits and all cuts, instead of a choice of them.
$(STORE_TEST_DIR)/store_faults-long: $(STORE_TEST_DIR)/store_faults selftests/ckpt/store/build.mk
	@printf '#!/bin/sh\nexec env SINGVGPU_SCALE=20 %s\n' '$<' >$@
	@chmod +x $@

TIMEOUT_store := 900
TIMEOUT_store_claims := 900
TIMEOUT_store_faults := 900
TIMEOUT_store_faults-long := 3600
# All threads of store_faults are in the other programs, too.
HOST_TESTS += $(filter-out $(if $(filter thread,$(SAN)),%/store_faults),$(STORE_TESTS))
LONG_TESTS += $(STORE_TEST_DIR)/store_faults-long
