/* SPDX-License-Identifier: Apache-2.0 */
/*
 * streamops.h - waits for values in memory, and writes of them
 */
#ifndef STREAMOPS_H
#define STREAMOPS_H

#include "process.h"

/* Check address and flags of a wait for a value, or of a write of one. */
LOCAL CUresult memop_wait(uint64_t addr, unsigned int size, unsigned int flags);
LOCAL CUresult memop_write(uint64_t addr, unsigned int size, unsigned int flags);

#endif
