# SPDX-License-Identifier: Apache-2.0
# build.mk - what the build needs from Debian, and the files unpacked from its linux-source.

.PHONY: setup
setup:
	@tools/setup/setup

$(KSELFTEST_H):
	tools/setup/setup linux-source
