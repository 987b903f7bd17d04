/* SPDX-License-Identifier: Apache-2.0 */
/*
 * types.h - names of types and operations, as the specification writes them
 */
#ifndef SELFTESTS_COLL_TYPES_H
#define SELFTESTS_COLL_TYPES_H

#include "tree.h"

static const char *const type_names[TREE_TYPES] = {
	[TREE_INT8] = "int8",     [TREE_UINT8] = "uint8", [TREE_INT32] = "int32",
	[TREE_UINT32] = "uint32", [TREE_INT64] = "int64", [TREE_UINT64] = "uint64",
	[TREE_F16] = "f16",       [TREE_F32] = "f32",     [TREE_F64] = "f64",
	[TREE_BF16] = "bf16",     [TREE_E4M3] = "e4m3",   [TREE_E5M2] = "e5m2",
};

static const char *const op_names[TREE_OPS] = {
	[TREE_SUM] = "sum", [TREE_PROD] = "prod", [TREE_MAX] = "max",
	[TREE_MIN] = "min", [TREE_AVG] = "avg",   [TREE_PREMULSUM] = "premulsum",
};

#endif /* SELFTESTS_COLL_TYPES_H */
