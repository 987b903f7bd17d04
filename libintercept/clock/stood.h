/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stood.h - where a conductor writes for how long a process has stood still
 *
 * A conductor that has a job frozen adds nanoseconds to this variable of each of its processes, by
 * /proc/PID/mem. At that time no thread of them runs. It only grows. At most the time is added for which
 * all threads have stood still, so no thread sees the steady clock go back.
 */
#ifndef SINGVGPU_STOOD_H
#define SINGVGPU_STOOD_H

#define STOOD_LIBRARY	"libsingvgpu-clock.so"
#define STOOD_VARIABLE	"singvgpu_stood_ns"	/* uint64_t */

#endif
