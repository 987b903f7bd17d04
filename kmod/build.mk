# SPDX-License-Identifier: Apache-2.0
# build.mk - singvgpu.ko for each kernel whose headers are here, in $(BUILD)/kmod/VERSION.
#
# kbuild leaves its objects beside its sources: each kernel gets a folder of links to them.

KMOD_SRC := $(wildcard kmod/*.c kmod/*.h) kmod/Kbuild kmod/include/uapi/linux/singvgpu.h
KMOD_KERNELS := $(shell cut -d' ' -f1 $(BUILD)/setup/kernels 2>/dev/null)
KMOD_KO := $(KMOD_KERNELS:%=$(BUILD)/kmod/%/singvgpu.ko)

# The headers know the compiler of their kernel; that of everything else here does not matter.
KMOD_MAKE = env -u MAKEFLAGS -u CC -u CFLAGS -u LDFLAGS $(MAKE) --no-print-directory \
	-C $(BUILD)/headers/$(1) M=$(abspath $(2)) KCFLAGS=$(WERROR) W=1

ifeq ($(SAN),)
ALL += $(KMOD_KO)
endif

$(BUILD)/kmod/%/singvgpu.ko: $(KMOD_SRC) kmod/build.mk
	@mkdir -p $(@D)
	@for f in $(notdir $(filter-out %/singvgpu.h,$(KMOD_SRC))) include; do \
		ln -sfn $(CURDIR)/kmod/$$f $(@D)/$$f; done
	@$(call KMOD_MAKE,$*,$(@D)) modules >$(@D)/build.log 2>&1 || \
		{ cat $(@D)/build.log >&2; exit 1; }
	@! grep -i 'warning' $(@D)/build.log >&2 || { rm -f $@; exit 1; }
	@touch $@

INSTALL_MAN += tools/man/singvgpu.4
