# SPDX-License-Identifier: Apache-2.0
# singvgpu_plugin.so, for `criu --libdir`; against the header of the oldest CRIU supported, 4.2.

CRIU_H := $(BUILD)/criu/include/criu/criu-plugin.h
CRIU_PLUGIN := $(B)/uproxy/ckpt/plugin/singvgpu_plugin.so

# CRIU would not start with a sanitizer's run-time library in a plugin.
$(CRIU_PLUGIN): uproxy/ckpt/plugin/plugin.c kmod/include/uapi/linux/singvgpu.h $(CRIU_H)
	@mkdir -p $(@D)
	$(CC) $(filter-out -fsanitize=%,$(CFLAGS)) -D_GNU_SOURCE -fPIC -shared \
		-isystem $(BUILD)/criu/include/criu -Ikmod/include/uapi -o $@ $<

# Made by setup; what depends on it is built by the make that follows.
ifneq ($(wildcard $(CRIU_H)),)
ALL += $(CRIU_PLUGIN)
INSTALL_LIB += $(CRIU_PLUGIN)
endif
