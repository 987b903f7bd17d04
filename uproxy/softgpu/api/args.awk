# SPDX-License-Identifier: Apache-2.0
# args.awk - of the parameters of a prototype their names: the last identifier of each

function args(p,   i, n, a, s, w) {
	if (p == "void" || p == "")
		return ""
	n = split(p, a, ",")
	s = ""
	for (i = 1; i <= n; i++) {
		w = a[i]
		gsub(/[ \t]+$/, "", w)
		sub(/.*[^A-Za-z0-9_]/, "", w)
		s = s (i > 1 ? ", " : "") w
	}
	return s
}
