# SPDX-License-Identifier: Apache-2.0

include uproxy/ckpt/plugin/build.mk
