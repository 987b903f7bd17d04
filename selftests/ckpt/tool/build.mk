# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of `singvgpu store`, with checkpoints that a program of theirs puts there.

STOREPUT := $(B)/selftests/ckpt/storeput
$(STOREPUT): selftests/ckpt/tool/storeput.c $(B)/ckpt/libstore.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -MMD -MP $(STORE_CFLAGS) -o $@ \
		$(filter %.c %.a,$^) $(LDFLAGS) $(STORE_LIBS)

# Sends what no sender would.
STORE_WIRE := $(B)/selftests/ckpt/wire
$(STORE_WIRE): selftests/ckpt/tool/wire.c tools/store/wire.c tools/store/store_wire.h $(B)/ckpt/libstore.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -Itools/store -Iuproxy/include $(STORE_CFLAGS) -o $@ $(filter %.c %.a,$^) \
		$(LDFLAGS) $(STORE_LIBS)
HOST_TESTS += $(STORE_WIRE)
$(STORE_WIRE): | $(B)/tools/singvgpu

$(B)/selftests/ckpt/sshduser.so: selftests/ckpt/tool/sshduser.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -fPIC -shared -o $@ $< -ldl

ifeq ($(SAN),)
HOST_TESTS += selftests/ckpt/tool/test-store-tool selftests/ckpt/tool/test-ssh selftests/ckpt/tool/test-trust selftests/ckpt/tool/test-report \
	selftests/ckpt/tool/test-resize selftests/ckpt/tool/test-resize-frameworks
TEST_PROGRAMS += $(STOREPUT) $(B)/selftests/ckpt/sshduser.so
TIMEOUT_test-ssh := 300
TIMEOUT_test-resize := 1800
TIMEOUT_test-resize-frameworks := 1200
LONG_TESTS += selftests/ckpt/tool/test-resize-long
TIMEOUT_test-resize-long := 7200
endif
