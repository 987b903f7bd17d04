# SPDX-License-Identifier: Apache-2.0
# tap.awk - judges one test program: its end (first file, by supervise) and its TAP (second file).
#
# Prints a line for each point, "pass|fail|skip TEXT" (a skipped one with " # REASON"), and at the
# end "total PASSED FAILED SKIPPED CPU-SECONDS". What is wrong with the program as a whole is one
# more failure.

function wrong(text)
{
	if (trouble == "")
		trouble = text
}

FILENAME == ARGV[1] {
	if ($1 == "leak")
		leaks = leaks (leaks == "" ? "" : ", ") substr($0, 6)
	else if ($1 == "cpu")
		cpu = $2
	else
		ending = $0
	next
}

/^1\.\.[0-9]+/ {
	if (planned != "")
		wrong("two plans")
	planned = substr($1, 4) + 0
	if (match(toupper($0), /# *SKIP/))
		skip_all = substr($0, RSTART + RLENGTH)
	sub(/^[ \t:]+/, "", skip_all)
	next
}

/^(not )?ok([ \t]|$)/ {
	bad = ($1 == "not")
	sub(/^(not )?ok[ \t]*/, "")
	points++
	if (match($0, /^[0-9]+/)) {
		if (substr($0, 1, RLENGTH) + 0 != points)
			wrong("point " substr($0, 1, RLENGTH) " is out of order")
		$0 = substr($0, RLENGTH + 1)
	}
	sub(/^[ \t]*(- )?[ \t]*/, "")
	text = $0
	directive = reason = ""
	if (match(toupper(text), /# *(SKIP|TODO|XFAIL)/)) {
		directive = toupper(substr(text, RSTART, RLENGTH))
		reason = substr(text, RSTART + RLENGTH)
		text = substr(text, 1, RSTART - 1)
		sub(/^[ \t:]+/, "", reason)
		if (text == "")
			text = reason
	}
	sub(/[ \t]+$/, "", text)
	if (directive != "" && !(bad && directive ~ /SKIP/)) {
		print "skip " text " # " reason
		skipped++
	} else if (bad) {
		print "fail " text
		failed++
	} else {
		print "pass " text
		passed++
	}
	next
}

/^Bail out!/ {
	wrong($0)
}

END {
	if (ending == "timeout")
		wrong("not finished after " limit " s")
	else if (ending ~ /^signal/)
		wrong("killed by " ending)
	else if (ending !~ /^exit [014]$/)
		wrong(ending == "" ? "supervise said nothing" : ending)
	if (ending == "exit 4" && points == 0 && trouble == "") {
		print "skip all of it # " (skip_all == "" ? "no reason given" : skip_all)
		skipped++
	} else if (skip_all != "" && planned == 0 && points == 0 && trouble == "") {
		print "skip all of it # " skip_all
		skipped++
	} else {
		if (planned == "")
			wrong("no plan")
		if (planned != points)
			wrong("planned " planned + 0 " points, saw " points + 0)
		if (points == 0)
			wrong("no points")
		if (ending == "exit 1" && failed == 0)
			wrong("exit status 1 with no failed point")
	}
	if (trouble != "") {
		print "fail (the program) " trouble
		failed++
	}
	if (leaks != "") {
		print "fail (the program) left processes behind: " leaks
		failed++
	}
	print "total " passed + 0 " " failed + 0 " " skipped + 0 " " (cpu == "" ? "?" : cpu)
}
