# SPDX-License-Identifier: Apache-2.0
# build.mk - the VM's runs of VM_TESTS, one for each kernel, and the proof that it sees trouble.

# A boot with all VM_TESTS is one program to the runner; its TAP has the points of all of them.
VM_PROGRAMS += $(VM_KERNELS:%=$(B)/selftests/vm/vm-%)
# Only a hang takes as long, or a host that has much else to do.
VM_LIMIT ?= 2400
# For one of them: emulation is slow, so more than on the host unless a fragment says how much.
vm_limit = $(or $(VM_TIMEOUT_$(1)),$(TIMEOUT_$(1)),300)
$(foreach k,$(VM_KERNELS),$(eval TIMEOUT_$(basename vm-$(k)) := $(VM_LIMIT)))

# Modules of the kernel that VM_TESTS need, beside those that load themselves.
VM_MODULES ?= unix_diag,inet_diag,tcp_diag,udp_diag,af_packet_diag,netlink_diag,nf_tables,veth,tun

# $(call vm_script,TESTS): a program that runs them in one boot of the kernel $*.
define vm_script
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nexec selftests/vm/vm-tests -m %s -l %s -t %s -s %s %s %s\n' \
		'$(VM_MODULES)' '$(B)/logs/$(@F)' '$(VM_LIMIT)' '$(SUPERVISE)' '$*' \
		'$(foreach t,$(1),$(call vm_limit,$(basename $(notdir $(t)))):$(t))' >$@
	@chmod +x $@
endef
$(B)/selftests/vm/vm-%: Makefile $(FRAGMENTS) selftests/vm/vm-tests
	$(call vm_script,$(VM_TESTS))

# `make check` leaves these out on the last of several kernels, since they take long. `make check-vm` runs all on each.
VM_ONCE := storm streams-kmod signals-norseq-kmod several-vm clocks-vm moves-vm plugin death-kmod freeze-kmod \
	records-kmod memory journal-kmod doctor-vm fuzz_ioctl hangup idle-kmod
VM_MOST := $(if $(word 2,$(VM_KERNELS)),$(lastword $(VM_KERNELS)))
VM_MOST := $(VM_MOST:%=$(B)/selftests/vm/most-%)
TEST_PROGRAMS += $(VM_MOST)
TIMEOUT_$(basename $(notdir $(VM_MOST))) := $(VM_LIMIT)
$(B)/selftests/vm/most-%: Makefile $(FRAGMENTS) selftests/vm/vm-tests
	$(call vm_script,$(filter-out $(addprefix %/,$(VM_ONCE)),$(VM_TESTS)))

# All rings, the memfd's too, on each kernel.
VM_RING_PROGRAMS := $(VM_KERNELS:%=$(B)/selftests/vm/rings-%)
LONG_TESTS += $(VM_RING_PROGRAMS)
$(foreach k,$(VM_KERNELS),$(eval TIMEOUT_$(basename rings-$(k)) := $(VM_LIMIT)))
$(B)/selftests/vm/rings-%: Makefile $(FRAGMENTS) selftests/vm/vm-tests
	$(call vm_script,$(RING_VM))

# What test-vm loads into the guest: a module that does one thing wrong.
PROVOKE := $(VM_KERNELS:%=$(BUILD)/selftests/vm/provoke/%/provoke.ko)
TEST_PROGRAMS += $(PROVOKE)
HOST_TESTS += selftests/vm/test-vm selftests/vm/test-install
SIDE_TESTS += selftests/vm/test-vm
LONG_TESTS += selftests/vm/test-vm-long
TIMEOUT_test-vm-long := 1800
VM_TESTS += selftests/vm/test-install
TIMEOUT_test-vm := 1800
TIMEOUT_test-install := 900

$(BUILD)/selftests/vm/provoke/%/provoke.ko: $(wildcard selftests/vm/provoke/*)
	@mkdir -p $(@D)
	@ln -sfn $(abspath $^) $(@D)/
	+@$(MAKE) --no-print-directory -C $(BUILD)/headers/$* M=$(abspath $(@D)) \
		CFLAGS_MODULE= KCFLAGS=$(WERROR) modules >$(@D)/build.log 2>&1 || \
		{ cat $(@D)/build.log >&2; exit 1; }
