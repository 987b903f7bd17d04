# SPDX-License-Identifier: Apache-2.0
# build.mk - the `singvgpu` command, its manual pages and completion, and where they are installed.

TOOL := $(B)/tools/singvgpu
TOOL_OBJ := $(patsubst %.c,$(B)/%.o,$(filter-out tools/init.c,$(wildcard tools/*.c)))
TOOL_VERSION := $(shell sed -n 's/^PACKAGE_VERSION="\?\([^"]*\)"\?$$/\1/p' kmod/dkms.conf)
# What the proxy shows and says: uproxy/stat.h, uproxy/trace.h, libintercept/gen/proto.h.
TOOL_CFLAGS := -D_GNU_SOURCE -DSINGVGPU_VERSION='"$(TOOL_VERSION)"' -Itools -Iuproxy -Iuproxy/ckpt \
	-Ilibintercept/gen -Ikmod/include/uapi

$(B)/tools/%.o: tools/%.c tools/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(TOOL_CFLAGS) -MMD -MP -c -o $@ $<

# uproxy/ckpt/build.mk is read after this one: its variables are good for recipes only.
$(TOOL): $(TOOL_OBJ) $(B)/ckpt/libcriu.a $(B)/ckpt/libfiles.a $(B)/ckpt/libstore.a \
		$(B)/uproxy/ckpt/libsingvgpu-control.a
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(STORE_LIBS) -lm -ldl

# Part of every checkpoint, so it depends on no library; a sanitizer's would be one.
TOOL_INIT := $(B)/tools/singvgpu-init
$(TOOL_INIT): tools/init.c tools/init.h tools/build.mk
	@mkdir -p $(@D)
	$(CC) $(filter-out -fsanitize=%,$(CFLAGS)) -D_GNU_SOURCE -static -o $@ $<

ALL += $(TOOL) $(TOOL_INIT)
INSTALL_BIN += $(TOOL)
INSTALL_MAN += $(wildcard tools/man/*.1 tools/man/*.5)

# What has a place of its own. The stand-ins under both of their names are one file: programs that
# load libcuda.so are to get what was preloaded as libcuda.so.1.
TOOL_LIBDIR := lib/singvgpu
TOOL_LIBEXEC := libexec/singvgpu
.PHONY: install-tool
install: install-tool
install-tool: all
	@to='$(DESTDIR)$(PREFIX)'; \
	for f in $(B)/uproxy/softgpu/libsoftcuda.so $(B)/uproxy/softgpu/libsoftjit.so; do \
		[ ! -e $$f ] || install -D -m 644 $$f "$$to/$(TOOL_LIBDIR)/$${f##*/}" || exit 1; \
	done; \
	for f in $(B)/uproxy/singvgpu-proxy $(TOOL_INIT); do \
		[ ! -e $$f ] || install -D -m 755 $$f "$$to/$(TOOL_LIBEXEC)/$${f##*/}" || exit 1; \
	done; \
	for n in libcuda libnvidia-ml; do \
		[ ! -e $(B)/lib/$$n.so.1 ] || { mkdir -p "$$to/$(TOOL_LIBDIR)" && \
			ln -sfn $$n.so.1 "$$to/$(TOOL_LIBDIR)/$$n.so"; } || exit 1; \
	done; \
	install -D -m 644 tools/completion/singvgpu \
		"$$to/share/bash-completion/completions/singvgpu"
