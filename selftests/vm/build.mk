# SPDX-License-Identifier: Apache-2.0
# build.mk - the VM in which VM_TESTS run, and the proof that it notices what it should.

KERNELS := $(shell awk '{ print $$1 }' $(BUILD)/setup/kernels 2>/dev/null)
VM_KERNELS := $(shell awk '$$2 == "vm" { print $$1 }' $(BUILD)/setup/kernels 2>/dev/null)
