# SPDX-License-Identifier: Apache-2.0
# build.mk - the `singvgpu` command, its manual pages and completion, and the test of its looks.

TOOL := $(B)/tools/singvgpu
TOOL_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard tools/*.c))
TOOL_VERSION := $(shell sed -n 's/^PACKAGE_VERSION="\?\([^"]*\)"\?$$/\1/p' kmod/dkms.conf)
# What the proxy says of itself and to its clients: uproxy/stat.h, trace.h; libintercept/gen/proto.h.
TOOL_CFLAGS := -D_GNU_SOURCE -DSINGVGPU_VERSION='"$(TOOL_VERSION)"' -Itools -Iuproxy \
	-Ilibintercept/gen -Ikmod/include/uapi

$(B)/tools/%.o: tools/%.c tools/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(TOOL_CFLAGS) -MMD -MP -c -o $@ $<

$(TOOL): $(TOOL_OBJ)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lm -ldl

ALL += $(TOOL)
INSTALL_BIN += $(TOOL)
