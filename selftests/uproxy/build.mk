# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the proxy, which they start and speak to by hand; they need $(CUDA_HOME). Each room has a .mk of
# its own, and all programs are built into one folder.

# Kernels fault in most of them, which sanitizers do not follow; the core runs under those in the fuzzers.
include $(sort $(wildcard selftests/uproxy/*/build.mk))
