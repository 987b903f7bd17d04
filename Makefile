# SPDX-License-Identifier: Apache-2.0
# Makefile - builds, tests and installs everything; each folder adds its part in its own build.mk.
#
# A fragment (*/build.mk, */*/build.mk) defines targets with outputs below $(B) and adds to
#   ALL            products and programs that plain `make` builds
#   HOST_TESTS     programs or scripts that print TAP 13, exit 0, 1 or 4 (skip); run from the top
#   VM_TESTS       the same, run as root in a VM on each of Debian's kernels, singvgpu.ko loaded
#   VM_PROGRAMS    programs like HOST_TESTS, that boot a VM of their own for `make check-vm`
#   SIDE_TESTS     those of HOST_TESTS that `make check` runs beside the others
#   LONG_TESTS     the same as HOST_TESTS, for `make check-long` only
#   FULL_TESTS     those of LONG_TESTS that `make check-full` runs besides HOST_TESTS
#   TEST_PROGRAMS  what the tests start, for `make check` to build
#   BENCHES        programs that write $(BUILD)/bench/NAME.json
#   DEMOS          programs or scripts that `make demo` runs one after the other
#   INSTALL_BIN INSTALL_LIB INSTALL_MAN    files for `make install`
#   TIMEOUT_name = seconds, for the test whose file is called name (300 if nothing is said)
# Tests get SINGVGPU_BUILD=$(B) in their environment.

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
SHELL := /bin/bash

# BUILD is shared by all variants (kselftest, VM images, kernel modules); B is where this one's
# objects go. A sanitizer build is make SAN=address,undefined B=build/asan TARGET.
BUILD := build
B ?= $(BUILD)

ifeq ($(origin CC),default)
CC := gcc
endif
FUZZCC ?= clang-19
SAN ?=
WERROR ?= -Werror
CFLAGS ?= -O2 -g
# Every room may include lock.h. -Wformat-security is in clang's -Wall, not in gcc's: what the
# sanitizers' builds refuse, the plain build refuses first.
override CFLAGS += -std=gnu11 -Wall -Wextra -Wformat-security $(WERROR) -Iringbuf/lock
ifneq ($(SAN),)
override CFLAGS += -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
override LDFLAGS += -fsanitize=$(SAN)
endif

# Test programs include <kselftest_harness.h>, unpacked from Debian's linux-source. Each test gets
# parameters from its macros that it need not use.
KSELFTEST := $(BUILD)/kselftest
KSELFTEST_H := $(KSELFTEST)/kselftest_harness.h
KSELFTEST_CFLAGS := -isystem $(KSELFTEST) -D_GNU_SOURCE -Wno-unused-parameter

ALL :=
HOST_TESTS :=
VM_TESTS :=
VM_PROGRAMS :=
SIDE_TESTS :=
LONG_TESTS :=
FULL_TESTS :=
BENCHES :=
TEST_PROGRAMS :=
DEMOS :=
INSTALL_BIN :=
INSTALL_LIB :=
INSTALL_MAN :=

all:

# The kernels that setup found headers for, and those of them that the VM boots.
KERNELS := $(shell awk '{ print $$1 }' $(BUILD)/setup/kernels 2>/dev/null)
VM_KERNELS := $(shell awk '$$2 == "vm" { print $$1 }' $(BUILD)/setup/kernels 2>/dev/null)

# The CUDA toolkit: build/cuda is what setup found or fetched. Fragments that speak of CUDA_HOME are
# left out where there is none; test-cuda says so.
override CUDA_HOME := $(patsubst %/include/cuda.h,%,$(firstword $(wildcard $(addsuffix \
	/include/cuda.h,$(abspath $(BUILD))/cuda $(CUDA_HOME) /usr/local/cuda))))
# Its headers, and before them what those of 13.0 declare and older ones do not.
CUDA_DIRS := libintercept/newer $(CUDA_HOME)/include
CUDA_CFLAGS := -Ilibintercept/newer -isystem $(CUDA_HOME)/include
# $(call nvcc,FLAGS): an older toolkit's builds for the architecture that is 13.0's default.
CUDA_IS_OLD := $(shell [ "0$$(sed -n 's/^.define CUDA_VERSION //p' $(CUDA_HOME)/include/cuda.h \
	2>/dev/null)" -ge 13000 ] || echo 1)
nvcc = $(CUDA_HOME)/bin/nvcc $(if $(CUDA_IS_OLD),-include selftests/jobs/older.cuh \
	$(if $(findstring arch,$(1)),,-arch=sm_75)) $(1)

# $(eval $(call FUZZER,FOLDER/ROOM,NAME,SECONDS,LIMIT)): the test selftests/FOLDER/ROOM/fuzz-NAME of the
# program selftests/FOLDER/fuzz_NAME, which is built once and not for each sanitizer; and its long form,
# with random inputs.
folder = $(firstword $(subst /, ,$(1)))
define FUZZER
ifeq ($(SAN),)
TEST_PROGRAMS += $(if $(shell command -v $(FUZZCC)),$(BUILD)/selftests/$(call folder,$(1))/fuzz_$(2))
HOST_TESTS += selftests/$(1)/fuzz-$(2)
LONG_TESTS += $(B)/selftests/$(call folder,$(1))/fuzz-$(2)-long
TIMEOUT_fuzz-$(2) := 120
TIMEOUT_fuzz-$(2)-long := $(4)
endif
$(B)/selftests/$(call folder,$(1))/fuzz-$(2)-long: Makefile
	@mkdir -p $$(@D)
	@printf '#!/bin/sh\nSINGVGPU_FUZZ_SEED=0 exec selftests/$(1)/fuzz-$(2) $(3)\n' >$$@
	@chmod +x $$@
endef

# $(call cc_several,FLAGS) SOURCES...: makes $@ of several sources. With -MMD gcc keeps the headers of the last one alone.
cc_several = $(CC) $(1) -MM -MP -MT $@ $(wildcard $(filter %.c,$^)) >$@.d && $(CC) $(1) -o $@

FRAGMENTS := $(sort $(wildcard */build.mk) $(wildcard */*/build.mk) uproxy/softgpu/transport/build.mk)
CUDA_FRAGMENTS := $(shell grep -l '(CUDA_HOME)' $(FRAGMENTS))
ifeq ($(CUDA_HOME),)
FRAGMENTS := $(filter-out $(CUDA_FRAGMENTS),$(FRAGMENTS))
endif
include $(FRAGMENTS)

# Recompile what a changed header reaches: fragments compile with -MMD -MP.
-include $(if $(wildcard $(B)),$(shell find $(B) -type f -name '*.d' -print -o -type d \( \
	$(foreach d,apt criu cuda frameworks headers jupyter kmod pypi tensorflow torch torch.new trainers vm,-path $(BUILD)/$(d) -o) -name logs \) -prune))

.PHONY: all tests clean note-setup
all: $(ALL) | note-setup
note-setup:
	@[ -e $(BUILD)/setup/packages.done ] || \
		echo "If something is missing: 'make setup' installs what the build needs."
tests: all $(SUPERVISE) $(TEST_PROGRAMS) $(HOST_TESTS) $(VM_TESTS) $(VM_PROGRAMS) $(LONG_TESTS)
	@:

# The test programs of a sanitizer build become one program to the runner.
SAN_PROGRAM = $(B)/selftests/harness/$(notdir $(B))-tests
.PHONY: san-tests
san-tests: $(SUPERVISE) $(filter $(B)/%,$(TEST_PROGRAMS) $(HOST_TESTS))
	@mkdir -p $(B)/selftests/harness
	@printf '#!/bin/sh\nexec env SINGVGPU_SAN=%s %s -q -x 3 -l %s %s %s\n' '$(SAN)' \
		'SINGVGPU_BUILD=$(B) selftests/harness/run-tests' '$(B)/logs' '$(SUPERVISE)' \
		'$(call timed,$(filter $(B)/%,$(HOST_TESTS)))' >$(SAN_PROGRAM)
	@chmod +x $(SAN_PROGRAM)

.PHONY: kmod
kmod: $(KMOD_KO)

clean:
	rm -rf $(filter-out $(addprefix $(BUILD)/,apt checkpatch criu cuda frameworks headers jupyter kselftest \
		pypi setup tensorflow torch torch.new trainers vm), \
		$(wildcard $(BUILD)/*))
