# SPDX-License-Identifier: Apache-2.0
# page.awk - writes docs/coverage.md from what generator, drivers and recorded tests say.
#
# awk -f page.awk version=13000 kind=coverage cuda.coverage kind=soft unsupported.def \
#	kind=source libintercept/*.c libintercept/*/*.c kind=calls calls.txt kind=features features.txt
#
# coverage   NAME, how the stand-in deals with it, by the generator
# soft       what the soft driver refuses, and why
# source     sv_unsupported("NAME", "REASON"): what a function by hand refuses of its work
# calls      NAME, programs in direct mode, programs through the proxy: see record

function base(name) {
	sub(/_pt[ds][sz]$/, "", name)
	sub(/_v[0-9]+$/, "", name)
	return name
}

function version_of(name) {
	sub(/_pt[ds][sz]$/, "", name)
	return match(name, /_v[0-9]+$/) ? substr(name, RSTART + 2) + 0 : 1
}

# The first few of both lists, each once, as code.
function code(list, most,   n, w, i, s) {
	n = split(list, w, " ")
	for (i = 1; i <= n && i <= most; i++)
		s = s (s == "" ? "" : " ") "`" w[i] "`"
	return s
}

function merge(list, more,   n, w, i) {
	n = split(more, w, " ")
	for (i = 1; i <= n; i++)
		if (index(" " list " ", " " w[i] " ") == 0)
			list = list (list == "" ? "" : " ") w[i]
	return list
}

function in_list(list, word) {
	return index(" " list " ", " " word " ") > 0
}

# What is between two quotes, and again: a string, perhaps in pieces, or a macro.
function text(s,   out) {
	if (s ~ /^[ \t]*[A-Z_]+[ \t]*\)/) {
		gsub(/[ \t)]/, "", s)
		return macro[s]
	}
	while (match(s, /"([^"\\]|\\.)*"/)) {
		out = out substr(s, RSTART + 1, RLENGTH - 2)
		s = substr(s, RSTART + RLENGTH)
	}
	return out
}

kind == "coverage" {
	split($0, f, "\t")
	b = base(f[1])
	if (!(b in newest)) {
		order[++bases] = b
		newest[b] = 0
	}
	if (f[1] !~ /_pt[ds][sz]$/ && version_of(f[1]) > newest[b]) {
		newest[b] = version_of(f[1])
		symbol[b] = f[1]
		how[b] = f[2]
	}
	next
}
kind == "soft" {
	if ($0 ~ /^#/ || NF == 0)
		next
	name = $1
	sub(/^[^ ]+ /, "")
	soft_no[name] = $0
	next
}
kind == "source" {
	if (/^#define [A-Z_]+ "/) {
		line = $0
		sub(/^#define [A-Z_]+/, "", line)
		macro[$2] = text(line)
	}
	if (call == "" && match($0, /sv_unsupported\("/))
		call = substr($0, RSTART + 15)
	else if (call != "")
		call = call " " $0
	if (call != "" && call ~ /\)[ \t]*[;:]/) {
		sub(/\)[ \t]*[;:].*/, ")", call)
		match(call, /^"[^"]*"/)
		name = substr(call, 2, RLENGTH - 2)
		rest = substr(call, RLENGTH + 2)
		why = text(rest)
		split(name, w, " ")
		if (sub(/^[^ ]+ /, "", name))
			why = name ": " why
		b = base(w[1])
		if ($0 ~ /^\treturn sv_unsupported/)
			whole[b] = 1
		if (index(part[b], why) == 0)
			part[b] = part[b] (part[b] == "" ? "" : "; ") why
		call = ""
	}
	next
}
kind == "calls" {
	split($0, f, "\t")
	if (f[1] == "passed") {
		pass["direct"] = f[2]
		pass["proxied"] = f[3]
		next
	}
	b = base(f[1])
	direct[b] = merge(direct[b], f[2])
	proxied[b] = merge(proxied[b], f[3])
	next
}
kind == "features" {
	if ($0 ~ /^#/ || NF == 0)
		next
	n = split($0, f, /[ \t]*\| */)
	# a | inside parentheses belongs to a pattern: put such fields together again
	theme = f[1]
	what = f[2]
	rest = $0
	sub(/^[^|]*\|[^|]*\| */, "", rest)
	depth = 0
	k = 1
	delete part_of
	for (i = 1; i <= length(rest); i++) {
		c = substr(rest, i, 1)
		depth += (c == "(") - (c == ")")
		if (c == "|" && depth == 0 && k < 3)
			k++
		else
			part_of[k] = part_of[k] c
	}
	for (i = 1; i <= 3; i++)
		gsub(/^ +| +$/, "", part_of[i])
	feature[++features] = what
	theme_of[features] = theme
	pattern[features] = part_of[1]
	shown_by[features] = part_of[2]
	limits[features] = part_of[3]
	next
}

# The three columns of a function: what happens, its reason, and who shows it.
function judge(b,   why) {
	why = ""
	if (how[b] ~ /^unsupported/) {
		why = how[b]
		sub(/^unsupported because /, "", why)
		state[b] = "refused"
		gpu[b] = "refused"
	} else if (proxied[b] != "") {
		state[b] = part[b] != "" ? "partial" : "works"
		why = part[b]
		gpu[b] = "not run"
	} else if (whole[b]) {
		state[b] = "refused"
		why = part[b]
		gpu[b] = "refused"
	} else if (symbol[b] in soft_no && how[b] !~ /locally/) {
		state[b] = "refused"
		why = "by the soft device: " soft_no[symbol[b]]
		gpu[b] = "not run"
	} else {
		state[b] = "untested"
		why = part[b]
		gpu[b] = "not run"
	}
	reason[b] = why
	if (symbol[b] in soft_no)
		alone[b] = "refused: " soft_no[symbol[b]]
	else if (direct[b] != "")
		alone[b] = "works: " code(direct[b], 2)
	else
		alone[b] = "untested"
	count[state[b]]++
	count[gpu[b], "gpu"]++
	split(alone[b], w, ":")
	count[w[1], "alone"]++
}

function place(   i, j, n, p, k) {
	for (k = 1; k <= bases; k++) {
		b = order[k]
		for (j = 1; j <= features; j++) {
			n = split(pattern[j], p, " ")
			for (i = 1; i <= n; i++)
				if (b ~ ("^(" p[i] ")$"))
					break
			if (i <= n)
				break
		}
		if (j > features) {
			print "features.txt: no line is for " b >"/dev/stderr"
			bad = 1
		} else {
			member[j, ++members[j]] = b
		}
	}
}

function list_of(j, what,   i, s, n) {
	for (i = 1; i <= members[j]; i++)
		if (state[member[j, i]] == what)
			s = s (n++ ? ", " : "") "`" member[j, i] "`"
	return s
}

function add(s, t) {
	return s (s == "" || t == "" ? "" : "; ") t
}

function feature_row(j,   i, n, tests, b, bad_at, s, g, w, m, no, only, p) {
	for (i = 1; i <= members[j]; i++) {
		b = member[j, i]
		n[state[b]]++
		g[gpu[b]]++
		if (reason[b] != "" && state[b] == "refused")
			only = index(only, reason[b]) ? only : add(only, reason[b])
	}
	m = split(shown_by[j], w, " ")
	for (i = 1; i <= m; i++) {
		if (in_list(pass["proxied"], w[i]))
			tests = merge(tests, w[i])
		else
			no = merge(no, w[i])
	}
	for (i = 1; i <= members[j]; i++) {
		p = proxied[member[j, i]]
		sub(/ .*/, "", p)
		tests = merge(tests, p)
	}
	if (members[j] + 0 == 0)
		s = no != "" ? "not shown: " code(no, 9) : tests == "" ? "refused" : "works"
	else if (n["refused"] == members[j])
		s = "refused: " only
	else if (n["works"] == members[j] && no == "")
		s = "works"
	else if (n["works"] + n["partial"] == 0)
		s = "untested"
	else
		s = n["refused"] + n["partial"] == 0 ? "works" : "partial"
	if (s !~ /^refused/) {
		if (n["untested"] && s != "untested")
			s = s "; untested: " list_of(j, "untested")
		if (n["refused"])
			s = s "; refused: " list_of(j, "refused") " (" only ")"
		for (i = 1; i <= members[j]; i++)
			if (state[member[j, i]] == "partial")
				s = s "; not all of `" member[j, i] "`: " reason[member[j, i]]
	}
	s = s == "refused" ? s ": " limits[j] : add(s, limits[j])
	printf "| %s | %s | %s | %s |\n", feature[j], s, s ~ /^refused/ ? "" : code(tests, 4),
		g["refused"] && g["refused"] == members[j] ? "refused" : "not run"
}

function function_rows(j,   i, k, b, row, names, rows, key) {
	for (i = 1; i <= members[j]; i++) {
		b = member[j, i]
		key = state[b] (state[b] == "works" || state[b] == "partial" ? \
			": " code(proxied[b], 2) : "") \
			(reason[b] == "" ? "" : (state[b] == "refused" ? ": " : "; refused in part: ") reason[b]) \
			" | " alone[b] " | " gpu[b]
		for (k = 1; k <= rows; k++)
			if (row[k] == key)
				break
		if (k > rows)
			row[++rows] = key
		names[k] = names[k] (names[k] == "" ? "" : " ") "`" symbol[b] "`"
	}
	for (k = 1; k <= rows; k++)
		printf "| %s | %s |\n", names[k], row[k]
}

END {
	for (i = 1; i <= bases; i++)
		judge(order[i])
	place()
	if (bad)
		exit 1
	print "# Coverage of the driver API\n"
	print "`make coverage-page` writes this page; do not edit it. It was written with the headers of CUDA " \
		int(version / 1000) "." int(version % 1000 / 10) ".\n"
	print "- *works*: a test program of `selftests` that passes has called it and got `CUDA_SUCCESS`; the"
	print "  programs named are those that call the fewest other functions. `make coverage-calls` runs"
	print "  them and writes down what they call (`selftests/coverage/calls.txt`). What a call"
	print "  does is checked by what its program checks; a name here is no more than that."
	print "- *partial*: it works, and what follows is refused."
	print "- *refused*: the call returns the CUDA error that says so, and a line on stderr has the reason."
	print "- *untested*: it is there, and no test program calls it with success."
	print "- *not run*: few programs have been run on an NVIDIA GPU ([gpu-results.md](gpu-results.md)); what is"
	print "  refused there is refused before it reaches the driver.\n"
	print "Versions of a function (`_v2`), and its forms for per-thread streams, count as one. NCCL has a page of"
	print "its own, [nccl.md](nccl.md).\n"
	printf "| of %d functions | works | partial | refused | untested | not run |\n", bases
	print "|---|---|---|---|---|---|"
	printf "| soft device, through the proxy | %d | %d | %d | %d | |\n", count["works"], count["partial"],
		count["refused"], count["untested"]
	printf "| soft device, direct mode | %d | | %d | %d | |\n", count["works", "alone"],
		count["refused", "alone"], count["untested", "alone"]
	printf "| NVIDIA's driver, through the proxy | | | %d | | %d |\n", count["refused", "gpu"],
		count["not run", "gpu"]
	print "\n## Features\n"
	for (j = 1; j <= features; j++) {
		if (theme_of[j] != theme_of[j - 1]) {
			printf "%s### %s\n\n", (j > 1 ? "\n" : ""), theme_of[j]
			print "| feature | soft device, through the proxy | shown by | NVIDIA |"
			print "|---|---|---|---|"
		}
		feature_row(j)
	}
	print "\n## Functions\n"
	for (j = 1; j <= features; j++) {
		if (!members[j])
			continue
		if (theme_of[j] != last) {
			printf "%s### Functions: %s\n\n", (last != "" ? "\n" : ""), theme_of[j]
			print "| functions | soft device, through the proxy | soft device, direct mode | NVIDIA |"
			print "|---|---|---|---|"
			last = theme_of[j]
		}
		function_rows(j)
	}
}
