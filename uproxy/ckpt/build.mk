# SPDX-License-Identifier: Apache-2.0

include uproxy/ckpt/plugin/build.mk

# The conductor's side of the control socket, for tools/ and tests.
CONTROL := $(B)/uproxy/ckpt/libsingvgpu-control.a
CONTROL_CFLAGS := -Iuproxy
$(B)/uproxy/ckpt/control_client.o: uproxy/ckpt/control_client.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CONTROL_CFLAGS) -MMD -MP -fPIC -c -o $@ $<
$(CONTROL): $(B)/uproxy/ckpt/control_client.o
	rm -f $@
	$(AR) rcs $@ $^
ALL += $(CONTROL)
