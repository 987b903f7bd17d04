/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attrs.h - the attributes of launches, kernel nodes and streams
 *
 * The client refuses other attributes in calls, the proxy in records. Each value is data that can
 * be saved and set again: events are virtual handles, and no other value is a handle.
 */
#ifndef SV_ATTRS_H
#define SV_ATTRS_H

#include "cuda_ops.h"

#define SV_ATTR_LAUNCH	1u	/* of a launch */
#define SV_ATTR_NODE	2u	/* of a graph's kernel node */
#define SV_ATTR_STREAM	4u	/* of a stream */
#define SV_ATTR_EVENT	8u	/* its value names an event */
#define SV_ATTR_OWN	16u	/* of a stream, and the client's own: not in a record of a stream */

#define SV_ATTR_STREAM_IDS 11u	/* attributes of streams have lower ids */

/* The objects (SV_ATTR_) that may have the attribute; 0: none. */
static inline unsigned int sv_attr_of(unsigned int id)
{
	switch (id) {
	case CU_LAUNCH_ATTRIBUTE_IGNORE:
	case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
		return SV_ATTR_LAUNCH;
	case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:	/* the proxy waits in its own way */
		return SV_ATTR_LAUNCH | SV_ATTR_OWN;
	case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
	case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
	case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
	case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
		return SV_ATTR_LAUNCH | SV_ATTR_NODE;
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
	case CU_LAUNCH_ATTRIBUTE_PRIORITY:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
	case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
		return SV_ATTR_LAUNCH | SV_ATTR_NODE | SV_ATTR_STREAM;
	case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
	case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
		return SV_ATTR_LAUNCH | SV_ATTR_EVENT;
	}
	return 0;
}

/* The bytes of the attribute's value that mean something. */
static inline unsigned int sv_attr_bytes(unsigned int id)
{
	switch (id) {
	case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
		return sizeof(CUaccessPolicyWindow);
	case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
	case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
		return 3 * sizeof(unsigned int);
	case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
	case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
		return sizeof(CUlaunchAttributeValue);
	}
	return sizeof(int);
}

/* May a program set and get the attribute of a stream? */
static inline int sv_attr_of_stream(unsigned int id)
{
	return id < SV_ATTR_STREAM_IDS && sv_attr_of(id) & (SV_ATTR_STREAM | SV_ATTR_OWN);
}

#endif
