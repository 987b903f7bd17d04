# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of checkpoints; the tests of each part are in a .mk of their own.

include $(filter-out %/build.mk,$(sort $(wildcard selftests/ckpt/*.mk)))
