# SPDX-License-Identifier: Apache-2.0
# tools.sh - sourced by the tests of `singvgpu`: the program under test with a folder of its own,
# a proxy and a stand-in that only play their parts, and what is left when a job is over.

set -u
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1
b=$PWD/${SINGVGPU_BUILD:-build}
tool=$b/tools/singvgpu
client=$b/selftests/tools/fakeclient
tmp=$(mktemp -d /tmp/svtest.XXXXXX)
point=0 failed=0
trap 'rm -rf "$tmp"' EXIT

# What the caller has left open, a job would get (255 is this script).
for fd in /proc/$$/fd/*; do
	fd=${fd##*/}
	[ "$fd" -le 2 ] || [ "$fd" = 255 ] || eval "exec $fd>&-"
done

# Everything that a job starts has this mark in its environment.
export SINGVGPU_TEST_MARK=mark-$$-$RANDOM
export SINGVGPU_LIBDIR=$b/selftests/tools/lib SINGVGPU_PROXY=$b/selftests/tools/fakeproxy
export XDG_RUNTIME_DIR=$tmp/run XDG_CACHE_HOME=$tmp/cache SINGVGPU_HISTORY=$tmp/history
unset FAKE_PROXY FAKE_PROXY_TELL CUDA_VISIBLE_DEVICES LD_PRELOAD LD_LIBRARY_PATH
mkdir -m 700 "$XDG_RUNTIME_DIR"

# run [OPTION...] -- COMMAND: the job, limited in time; stdout, stderr and status go to $out, $err, $rc.
run()
{
	timeout -k 5 200 "$tool" run "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
	rc=$?
	out=$(tr -d '\0' <"$tmp/out") err=$(<"$tmp/err")
}

# devices N: options of run for N devices; with MAP in the environment, its first N say which ones these are
devices()
{
	local on=

	# A number without a comma would be a count.
	[ -z "${MAP-}" ] || on=$(cut -d , -f "1-$1" <<<"$MAP,$MAP" | sed 's/^[0-9]*$/&,/')
	echo "--devices $1 ${on:+--on $on}"
}

# is WHAT GOT WANTED
is()
{
	point=$((point + 1))
	if [ "$2" = "$3" ]; then
		echo "ok $point - $1"
		return
	fi
	failed=1
	echo "not ok $point - $1"
	# Of much text the first lines that differ say more than the first lines.
	if [[ $2 == *$'\n'* && $3 == *$'\n'* ]]; then
		diff <(echo "$3") <(echo "$2") | sed 's/^</wanted:/; s/^>/got:   /'
	else
		printf 'got: %s\nwanted: %s\n' "$2" "$3"
	fi | head -c 2000 | head -n 30 | sed 's/^/#   /'
}

# like WHAT TEXT EXTENDED-REGEXP
like()
{
	point=$((point + 1))
	if grep -qE -- "$3" <<<"$2"; then
		echo "ok $point - $1"
		return
	fi
	failed=1
	echo "not ok $point - $1"
	printf 'got: %s\nwanted something like: %s\n' "$2" "$3" | head -c 2000 | head -n 30 |
		sed 's/^/#   /'
}

skip()
{
	point=$((point + 1))
	echo "ok $point - $1 # SKIP $2"
}

# Processes with the mark other than this test's own; zombies have no environment.
marked()
{
	local p pid words
	for p in /proc/[0-9]*; do
		pid=${p#/proc/}
		[ "$pid" != $$ ] && [ "$pid" != "$BASHPID" ] || continue
		{ mapfile -d '' -t words <"$p/environ"; } 2>/dev/null || continue
		[[ " ${words[*]} " == *" SINGVGPU_TEST_MARK=$SINGVGPU_TEST_MARK "* ]] || continue
		[ "$(readlink "$p/exe")" != "$(readlink /proc/$$/exe)" ] ||
			! grep -qzsF "$0" "$p/cmdline" || continue
		echo "$pid $(tr '\0' ' ' 2>/dev/null <"$p/cmdline" | head -c 80)"
	done
}

# nothing_left WHAT: soon there is no process of the job, and no folder; a busy machine takes longer.
nothing_left()
{
	local i what
	for ((i = 0; i < 600; i++)); do
		what=$(marked; find "$XDG_RUNTIME_DIR" -mindepth 1)
		[ -n "$what" ] || break
		nap 0.05
	done
	is "$1" "$what" ""
}

# nap SECONDS: a sleep that starts no process. The emulator would do little else than start them.
mkfifo "$tmp/nap"
nap()
{
	read -rt "$1" <>"$tmp/nap" || :
}

# wait_for SECONDS COMMAND...: until it succeeds. On a busy machine all may take minutes: a time says when a
# test is given up, never what is right.
wait_for()
{
	local i n=$((($1 > 240 ? $1 : 240) * 50))
	shift
	for ((i = 0; i < n; i++)); do
		! "$@" >/dev/null 2>&1 || return 0
		nap 0.02
	done
	return 1
}

# has_ended PID: whether it has been waited for or not
has_ended()
{
	local line
	{ read -r line <"/proc/$1/stat"; } 2>/dev/null || return 0
	[[ $line == *") Z "* ]]
}

# The number after KEY in the only job's file: pid, supervisor.
job_pid()
{
	sed -n "s/^$1 //p" "$XDG_RUNTIME_DIR"/singvgpu/*/job
}

json_valid()
{
	perl -MJSON::PP -e 'local $/; decode_json(<STDIN>); print "valid"' 2>&1
}

# json_get EXPRESSION: of the JSON on stdin, as perl code on $j.
json_get()
{
	perl -MJSON::PP -e 'local $/; my $j = decode_json(<STDIN>); print eval $ARGV[0]' "$1"
}

finish()
{
	echo "1..$point"
	exit $failed
}

for program in "$tool" "$client" "$SINGVGPU_PROXY" "$SINGVGPU_LIBDIR/libcuda.so.1"; do
	if [ "$program" = "$tool" ] && [ ! -e "$tool" ]; then
		printf '1..1\nnot ok 1 - %s is not built\n' "$tool"	# the others are where there is a toolkit
		exit 1
	fi
	if [ ! -e "$program" ]; then
		echo "1..0 # SKIP $program is not built"
		exit 4
	fi
done
echo "TAP version 13"
