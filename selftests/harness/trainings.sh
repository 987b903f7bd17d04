# SPDX-License-Identifier: Apache-2.0
# trainings.sh - for test-jax, test-tensorflow and test-torch-ranks: runs a framework's training scripts through the
# proxy. Each compares its results with the CPU's, prints their checksum, and is run twice, on one core
# and on all: the bits must be the same.
#
# The script that includes this file sets, and then calls run_trainings with its cases:
#   folder     of the scripts
#   python     what runs them
#   packages   whose versions are told
#   over       what else is, if that is set
#   short all  cases: SCRIPT [ARGUMENT]... [NAME=VALUE]... [--OPTION]..., with variables for the environment
#              and options for singvgpu run; or "saved SCRIPT ...", whose script prints "step N LOSS" after
#              each step; or "maps SCRIPT ...", whose four devices are mapped to fewer
# In the environment:
#   TRAINING_RUNNER   what they are started with (default: build/tools/singvgpu run); "env" on a
#                     machine with a GPU
#   TRAINING_TIMEOUT  seconds for one run of one script (default 600: the first compiles its kernels)

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1
b=${SINGVGPU_BUILD:-build}
read -ra runner <<<"${TRAINING_RUNNER:-$b/tools/singvgpu run}"
limit=${TRAINING_TIMEOUT:-600}
export SINGVGPU_SOFT_CACHE=${SINGVGPU_SOFT_CACHE:-$PWD/$b/softgpu-cache}
export PYTHONDONTWRITEBYTECODE=1
core=$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')
nl=$'\n' rank='(\[0\] )?'

# words WORD...: a case's arguments, variables and options
words()
{
	local word
	arguments=() variables=() options=()
	for word; do
		case $word in
		--*) options+=("${word/=/ }") ;;
		*=*) variables+=("$word") ;;
		*) arguments+=("$word") ;;
		esac
	done
	read -ra options <<<"${options[*]}"
}

# started COMMAND... -- SCRIPT [ARG]...: runs the script by the command, with what words has found
started()
{
	local -a command=()
	while [ "$1" != -- ]; do
		command+=("$1")
		shift
	done
	"${command[@]}" env "${variables[@]}" "${runner[@]}" "${options[@]}" -- \
		"$python" "$folder/$2.py" "${@:3}" 2>&1 </dev/null
}

# passes HOW SCRIPT WHERE: does the script, with what words has found, pass with the checksum `first`, which its first run
# sets? Else $why says what is wrong.
passes()
{
	local out
	# shellcheck disable=SC2086
	out=$(started timeout -k 5 "$limit" $1 -- "$2" "${arguments[@]}"; echo "exit $?")
	# Of several ranks, the first one says so.
	if ! [[ $out =~ (^|$nl)${rank}checksum\ ([0-9a-f]{16})${nl}${rank}PASS\ [^$nl]+${nl}exit\ 0$ ]]; then
		why="did not pass (${options[*]}; $1)$nl$(tail -n 30 <<<"$out")"
	elif [ "${BASH_REMATCH[3]}" != "${first:=${BASH_REMATCH[3]}}" ]; then
		why="has other results $3"
	fi
	[ -z "$why" ]
}

# twice SCRIPT WORD...: nothing if it passes twice with one checksum, else what is wrong
twice()
{
	local how first="" why=""
	words "${@:2}"
	for how in "taskset -c $core" env; do
		passes "$how" "$1" "the second time" || break
	done
	echo "$why"
}

# maps SCRIPT WORD...: the same on four devices, and with these mapped to one or two
maps()
{
	local map first="" why=""
	for map in 4 0,0,0,0 0,1,0,1 0,0,1,1 0,0,0,1; do
		words "${@:2}" "--on=$map"
		passes env "$1" "on devices $map" || break
	done
	echo "$why"
}

# saved SCRIPT WORD...: nothing if the training, saved between two steps, ended and restored, goes on
# with the same bits; else what is wrong
saved()
{
	local -x SINGVGPU_STORE=$scratch/store
	local job out=$scratch/out script=$1 said="^$rank(step|checksum|PASS)"
	words "${@:2}"
	started timeout -k 5 "$limit" -- "$script" 60 | grep -E "$said" >"$scratch/whole"
	: >"$out"
	# It shall not be at its end before it is saved.
	env "${variables[@]}" "${runner[@]}" "${options[@]}" -- \
		"$python" "$folder/$script.py" 60 0.3 >"$out" 2>&1 </dev/null &
	job=$!
	until grep -qE "^${rank}step 20 " "$out" || ! kill -0 $job 2>/dev/null; do sleep 0.1; done
	if ! "$b/tools/singvgpu" checkpoint "$job" >"$scratch/checkpoint" 2>&1; then
		echo "is not saved"
		tail -n 20 "$scratch/checkpoint" "$out"
		kill $job 2>/dev/null
		wait $job
		return
	fi
	wait $job
	! grep -qE "^${rank}PASS" "$out" || echo "had come to its end"
	# One process goes on to write into its own file; the lines of several ranks come out of the restore.
	timeout -k 5 300 "$b/tools/singvgpu" restore "latest:$job" >"$scratch/restore" 2>&1 || {
		echo "is not restored"
		tail -n 20 "$scratch/restore"
	}
	if ! grep -qE "^${rank}PASS" "$scratch/whole"; then
		echo "does not pass"
		tail -n 20 "$scratch/whole"
	elif ! diff "$scratch/whole" <(grep -hE "$said" "$out" "$scratch/restore") >"$scratch/diff"; then
		echo "goes on with other results"
		head -n 20 "$scratch/diff"
	fi
}

# subject PACKAGE...: says what the cases run on, for selftests/harness/supported
subject()
{
	local device="soft device"
	[ ! -e /proc/driver/nvidia/version ] || device="NVIDIA GPU"
	echo "# subject $("${python:?}" -c '
import importlib.metadata, sys
print(", ".join(p + " " + importlib.metadata.version(p) for p in sys.argv[1:]))' "$@")${over:+, $over}; $device"
}

# run_trainings [all | CASE]: the cases of `short`, of `all`, or one
run_trainings()
{
	local case why began failed=0 point=0
	local -a cases line

	mkdir -p "$SINGVGPU_SOFT_CACHE"
	scratch=$(mktemp -d)
	trap 'rm -rf "$scratch"' EXIT
	export TRAINING_SCRATCH=$scratch
	case ${*:-short} in
	short) cases=("${short[@]}") ;;
	all) cases=("${all[@]}") ;;
	*) cases=("$*") ;;
	esac
	echo "TAP version 13"
	# shellcheck disable=SC2154
	subject "${packages[@]}"
	for case in "${cases[@]}"; do
		point=$((point + 1))
		read -ra line <<<"$case"
		began=$SECONDS
		case $case in
		saved\ * | maps\ *) why=$("${line[@]}") ;;
		*) why=$(twice "${line[@]}") ;;
		esac
		if [ -z "$why" ]; then
			echo "ok $point - $case"
		else
			failed=1
			echo "not ok $point - $case ${why%%"$nl"*}"
			sed '1d; s/^/#   /' <<<"$why"
		fi
		echo "# $((SECONDS - began)) s"
	done
	echo "1..$point"
	return $failed
}
