# SPDX-License-Identifier: Apache-2.0
# build.mk - the `singvgpu` command, its manual pages and completion, and where they are installed.

TOOL := $(B)/tools/singvgpu
TOOL_OBJ := $(patsubst %.c,$(B)/%.o,$(filter-out tools/job/init.c, \
	$(wildcard tools/*.c tools/*/*.c)))
TOOL_VERSION := $(shell sed -n 's/^PACKAGE_VERSION="\?\([^"]*\)"\?$$/\1/p' kmod/dkms.conf)

# The folders whose headers each room may include besides its own. uproxy/include has a proxy's
# interface, libintercept/gen has proto.h and windows.h, libintercept/clock stood.h.
TOOL_SEES_tools := kmod/include/uapi uproxy/include tools/job
TOOL_SEES_cmd := $(addprefix tools/,. job ckpt store doctor history report) uproxy/include uproxy/coll \
	libintercept/gen $(addprefix uproxy/ckpt/,store criu files)
TOOL_SEES_job := $(addprefix tools/,. ckpt history) uproxy/include uproxy/ckpt/criu libintercept/gen \
	kmod/include/uapi uproxy/coll libintercept/files
TOOL_SEES_ckpt := $(addprefix tools/,. job history store) uproxy/include libintercept/clock \
	$(addprefix uproxy/ckpt/,store criu files)
TOOL_SEES_store := $(addprefix tools/,. ckpt job) uproxy/include $(addprefix uproxy/ckpt/,store criu)
TOOL_SEES_history := $(addprefix tools/,. ckpt job) uproxy/include
TOOL_SEES_report := $(addprefix tools/,. ckpt job store history) uproxy/include uproxy/ckpt/store
TOOL_SEES_doctor := tools kmod/include/uapi
tool_sees = -I$(patsubst %/,%,$(dir $<)) \
	$(addprefix -I,$(TOOL_SEES_$(notdir $(patsubst %/,%,$(dir $<)))))
TOOL_CFLAGS := -D_GNU_SOURCE -DSINGVGPU_VERSION='"$(TOOL_VERSION)"'

$(B)/tools/%.o: tools/%.c tools/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(TOOL_CFLAGS) $(tool_sees) -MMD -MP -c -o $@ $<

TOOL_PARTS := $(TOOL_OBJ) $(addprefix $(B)/,uproxy/message/message.o libintercept/files/uses.o ckpt/libcriu.a ckpt/libfiles.a ckpt/libstore.a \
	uproxy/ckpt/libsingvgpu-control.a uproxy/libcoll.a)

# uproxy/ckpt/build.mk is read after this file: only recipes can use its variables.
$(TOOL): $(TOOL_PARTS)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(STORE_LIBS) -lm -ldl

# init is part of every checkpoint, so it depends on no library, not even a sanitizer's.
TOOL_INIT := $(B)/tools/singvgpu-init
$(TOOL_INIT): tools/job/init.c tools/job/init.h tools/build.mk
	@mkdir -p $(@D)
	$(CC) $(filter-out -fsanitize=%,$(CFLAGS)) -D_GNU_SOURCE -static -o $@ $<

ALL += $(TOOL) $(TOOL_INIT)
INSTALL_BIN += $(TOOL)
INSTALL_MAN += $(wildcard tools/man/*.1 tools/man/*.5)

# Installs the files outside bin, lib and man, and the CRIU that setup has unpacked. Both names of a stand-in are one file: programs that load
# libcuda.so get the library that was preloaded as libcuda.so.1.
TOOL_LIBDIR := lib/singvgpu
TOOL_LIBEXEC := libexec/singvgpu
.PHONY: install-tool
install: install-tool
install-tool: all
	@to='$(DESTDIR)$(PREFIX)'; \
	for f in $(addprefix $(B)/uproxy/softgpu/libsoft,cuda.so jit.so comm.so); do \
		[ ! -e $$f ] || install -D -m 644 $$f "$$to/$(TOOL_LIBDIR)/$${f##*/}" || exit 1; \
	done; \
	for f in $(B)/uproxy/singvgpu-proxy $(TOOL_INIT); do \
		[ ! -e $$f ] || install -D -m 755 $$f "$$to/$(TOOL_LIBEXEC)/$${f##*/}" || exit 1; \
	done; \
	if [ -x $(BUILD)/criu/criu ]; then \
		rm -rf "$$to/$(TOOL_LIBEXEC)/criu" && mkdir -p "$$to/$(TOOL_LIBEXEC)/criu" && \
			cp -a $(addprefix $(BUILD)/criu/,criu nft root) "$$to/$(TOOL_LIBEXEC)/criu/" || exit 1; \
	fi; \
	for n in libcuda libnvidia-ml; do \
		[ ! -e $(B)/lib/$$n.so.1 ] || { mkdir -p "$$to/$(TOOL_LIBDIR)" && \
			ln -sfn $$n.so.1 "$$to/$(TOOL_LIBDIR)/$$n.so"; } || exit 1; \
	done; \
	install -D -m 644 tools/completion/singvgpu \
		"$$to/share/bash-completion/completions/singvgpu"
