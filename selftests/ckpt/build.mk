# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of checkpoints; each room has a .mk of its own, and all programs are built into one folder.

include $(sort $(wildcard selftests/ckpt/*/*.mk))
